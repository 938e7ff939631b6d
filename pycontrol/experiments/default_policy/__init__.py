"""Experiments about the default policy."""
