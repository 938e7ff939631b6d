"""What the papers claim, measured here: one experiment a figure or table, each with what it assumes."""
