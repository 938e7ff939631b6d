"""Replays cases from files with the production code."""
