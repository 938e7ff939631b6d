"""Hadoop's configuration files and ours: rendered from templates, and checked."""
