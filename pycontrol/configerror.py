"""The error of configurations; apart, so that commands that only look load no schema."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(Exception):
    """The configuration cannot be used; each of `lines` names the file, the key and what to do."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))
