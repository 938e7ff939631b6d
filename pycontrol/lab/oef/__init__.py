"""Experiments on OEF."""
