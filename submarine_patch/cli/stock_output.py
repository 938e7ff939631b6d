"""What of the stock command line's output is worth passing on: neither its banner nor its 155 lines of help."""

from __future__ import annotations

import re

WORDS = re.compile(r"[A-Za-z0-9]")


class Filter:
    """Line by line."""

    def __init__(self) -> None:
        self._begun = self._help = False

    def shows(self, line: str) -> bool:
        """Whether the line continues: nothing before the first words at a line's beginning, nothing from a usage on."""
        self._help = self._help or line.startswith("usage:")
        self._begun = self._begun or WORDS.match(line) is not None
        return self._begun and not self._help
