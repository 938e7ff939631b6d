"""The laboratory: experiments that measure the papers' claims, with their workloads, references and test suites.

It imports the product, never the other way round; the commands reach it through `pycontrol.cli.lab`.
"""
