"""The laboratory: experiments that measure the papers' claims, with their workloads, references and test suites.

It imports the product, never the other way round; the lists of commands and policies name what is here.
"""
