"""Themis' experiments."""
