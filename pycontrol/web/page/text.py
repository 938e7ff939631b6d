"""Numbers, times and colours as the page writes them."""
# ruff: noqa: RUF001

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context

from pycontrol import words

APP_ID = re.compile(r"application_[0-9]+_[0-9]+")
COLOURS = 16
"""Classes c0 to c15 of page.css."""


@pass_context
def _clock(context: Context, at_s: float | None) -> str:
    return "–" if at_s is None else words.clock(at_s, context["now_s"] or 0.0)


@pass_context
def _named(context: Context, sentence: str) -> str:
    """The sentence with the names of apps in place of their ids, where the page knows them."""
    names: Mapping[str, str] = context["names"]
    return APP_ID.sub(lambda found: names.get(found[0]) or found[0], sentence)


def number(value: Any, digits: int = 2) -> str:
    """A number, short."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.{digits}f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def until(end_s: float | None, now_s: float) -> str:
    """How long a lease lasts."""
    if end_s is None or not math.isfinite(end_s):
        return "at no set time"
    return f"in {words.span(end_s - now_s)}" if end_s > now_s else "now"


_WORDS = (words.span, words.gpu_time, words.count, words.standing, words.result, words.estimate)
FILTERS = {"clock": _clock, "number": number, "named": _named, **{word.__name__: word for word in _WORDS}}


def colours(keys: Iterable[str]) -> dict[str, int]:
    """A colour for each key: its own by hash, or the next that is free while there are any."""
    found: dict[str, int] = {}
    taken = [0] * COLOURS
    for key in keys:
        at = zlib.crc32(key.encode()) % COLOURS
        fewest = min(taken)
        while taken[at] > fewest:
            at = (at + 1) % COLOURS
        taken[at] += 1
        found[key] = at
    return found
