"""HiveD's experiments."""
