"""Words of messages: counts, and suggestions for unknown words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

NEAR = 0.6
"""The least similarity of two words, from 0 to 1."""


def count(n: int, one: str, many: str = "") -> str:
    """1 app, 2 apps."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def gpu_time(gpu_s: float) -> str:
    """GPU-seconds as people say them."""
    return f"{gpu_s:,.0f} GPU-s" if gpu_s < 3600 else f"{gpu_s / 3600:,.1f} GPU-h"


def result(best: Mapping[str, Any]) -> str:
    """What the best job came to; empty if its log showed no value and it has no configuration."""
    value = best.get("value", best["accuracy"] or None)
    text = "" if value is None else f"{best.get('metric') or 'accuracy'} {value:.4f}"
    names = ", ".join(f"{name}:{chosen}" for name, chosen in best["configuration"].items())
    return f"{text or '-'} with {names}" if names else text


def span(seconds: float) -> str:
    """A duration of two units at most: 8 s, 3 min, 5 h 02 min, 3 d 4 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def utc(at_s: float) -> str:
    """A time, of Unix seconds."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def suggest(
    word: object,
    known: Iterable[object],
    *,
    otherwise: str | None = None,
    prefix: str = "",
    most: int = 1,
    near: float = NEAR,
) -> str:
    """`did you mean themis?`, or if no word is similar, `otherwise` or the known words; `prefix` precedes a word."""
    words = [str(w) for w in known]
    close = difflib.get_close_matches(str(word), words, most, near)
    if close:
        return f"did you mean {' or '.join(prefix + w for w in close)}?"
    return f"known are {', '.join(words) or 'none'}" if otherwise is None else otherwise
