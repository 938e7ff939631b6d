"""Shares that OEF is compared with."""
