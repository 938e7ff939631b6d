"""OEF's experiments."""
