"""Experiments on the default policy."""
