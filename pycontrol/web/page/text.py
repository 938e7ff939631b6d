"""Numbers, times and colours as the page writes them."""
# ruff: noqa: RUF001

from __future__ import annotations

import math
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context

from pycontrol import words
from pycontrol.words import count

APP_ID = re.compile(r"application_[0-9]+_[0-9]+")
COLOURS = 16
"""Classes c0 to c15 of page.css."""


def span(seconds: float | None) -> str:
    """A duration of two units at most."""
    return "–" if seconds is None else words.span(abs(seconds))


def clock(at_s: float | None, now_s: float) -> str:
    """The control plane's local time of day, with the day where that is not `now_s`'s."""
    if at_s is None:
        return "–"
    then = time.localtime(at_s)
    return time.strftime("%H:%M" if then[:3] == time.localtime(now_s)[:3] else "%d %b %H:%M", then)


@pass_context
def _clock(context: Context, at_s: float | None) -> str:
    return clock(at_s, context["now_s"] or 0.0)


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


def gpu_time(gpu_s: float | None) -> str:
    """GPU-seconds as people say them."""
    return "–" if gpu_s is None else words.gpu_time(gpu_s)


def standing(amount: float | None, measure: Mapping[str, str]) -> str:
    """What the policy orders by: `in 4 min` or `12 min ago` of a virtual finish time, else the number."""
    if amount is None:
        return "–"
    if measure["name"] == "virtual finish time":
        return f"in {span(amount)}" if amount >= 0 else f"{span(amount)} ago"
    if measure["unit"] == "GPU-s":
        return gpu_time(amount)
    return span(amount) if measure["unit"] == "s" else number(amount)


def ends(end_s: float, now_s: float) -> str:
    """How long a lease lasts."""
    return f"ends in {span(end_s - now_s)}" if end_s > now_s else "ends now"


def estimate(quantiles: Sequence[float | None] | None, now_s: float) -> str:
    """`~25 min (15 min to 60 min)`; empty where it is not known."""
    if not quantiles or quantiles[1] is None:
        return ""
    low, middle, high = (None if x is None else span(max(0.0, x - now_s)) for x in quantiles)
    return f"~{middle} ({low} to {high or 'more than a week'})"


def gang(hosts: Iterable[Sequence[Any]]) -> str:
    """A gang: host and GPUs, joined by +."""
    return " + ".join(f"{host} × {gpus}" for host, gpus in hosts)


FILTERS = {
    "span": span, "clock": _clock, "number": number, "gpu_time": gpu_time, "count": count, "standing": standing,
    "result": words.result, "gang": gang, "estimate": estimate, "named": _named,
}  # fmt: skip


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
