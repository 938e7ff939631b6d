"""What an error says of a word that is not known: the nearest one that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.6
"""How alike two words must be, of 1."""


def suggest(
    word: object,
    known: Iterable[object],
    *,
    otherwise: str | None = None,
    prefix: str = "",
    most: int = 1,
    near: float = NEAR,
) -> str:
    """`did you mean themis?`; where nothing is near, `otherwise`, or what is known. `prefix` goes before a word."""
    words = [str(w) for w in known]
    close = difflib.get_close_matches(str(word), words, most, near)
    if close:
        return f"did you mean {' or '.join(prefix + w for w in close)}?"
    return f"known are {', '.join(words) or 'none'}" if otherwise is None else otherwise
