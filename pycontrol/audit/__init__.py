"""Offline accounts of a journal: audit, report, usage."""
