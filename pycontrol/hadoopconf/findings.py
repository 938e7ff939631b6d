"""Findings of checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem to correct (error), or one fact to know (note)."""

    level: str
    file: str
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{self.level}: {where}: {self.message}"


def error(file: str, key: str, message: str) -> Finding:
    """Something that will not work."""
    return Finding("error", file, key, message)


def note(file: str, key: str, message: str) -> Finding:
    """Something that works but may surprise."""
    return Finding("note", file, key, message)
