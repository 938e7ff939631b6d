"""Isonomy: fair and safe sharing of a GPU cluster on Hadoop YARN."""
