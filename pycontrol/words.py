"""Words of messages, the same on screens, pages and in JSON: counts, durations, and suggestions for unknown words."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

NEAR = 0.6
"""The least similarity of two words, from 0 to 1."""


def count(n: int, one: str, many: str = "") -> str:
    """1 app, 2 apps."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def gpu_time(gpu_s: float | None) -> str:
    """GPU-seconds as people say them."""
    if gpu_s is None:
        return "-"
    return f"{gpu_s:,.0f} GPU-s" if gpu_s < 3600 else f"{gpu_s / 3600:,.1f} GPU-h"


def result(best: Mapping[str, Any]) -> str:
    """What the best job came to; empty if its log showed no value and it has no configuration."""
    value = best.get("value", best["accuracy"] or None)
    text = "" if value is None else f"{best.get('metric') or 'accuracy'} {value:.4f}"
    names = ", ".join(f"{name}:{chosen}" for name, chosen in best["configuration"].items())
    return f"{text or '-'} with {names}" if names else text


def span(seconds: float | None) -> str:
    """A duration of two units at most: 8 s, 3 min, 5 h 02 min, 3 d 4 h."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def left(end_s: float | None, now_s: float) -> str:
    """How long until then."""
    return "over" if end_s is not None and end_s < now_s else span(None if end_s is None else end_s - now_s)


def estimate(quantiles: Sequence[float | None] | None, now_s: float) -> str:
    """How long until a time, by its 10, 50 and 90 % quantiles: `~25 min (15 min to 60 min)`; empty if not known."""
    if not quantiles or quantiles[1] is None:
        return ""
    low, middle, high = (None if x is None else span(max(0.0, x - now_s)) for x in quantiles)
    return f"~{middle} ({low} to {high})" if high else f"~{middle} ({low} or more)"


def standing(amount: float | None, measure: Mapping[str, str]) -> str:
    """What the policy orders by: `in 4 min` or `12 min ago` of a virtual finish time, else the number."""
    if amount is None:
        return "-"
    if measure["name"] == "virtual finish time":
        return f"in {span(amount)}" if amount >= 0 else f"{span(-amount)} ago"
    if measure["unit"] == "GPU-s":
        return gpu_time(amount)
    return span(amount) if measure["unit"] == "s" else f"{amount:.2f}"


def gang(hosts: Iterable[Sequence[Any]]) -> str:
    """A gang: host x GPUs, joined by +."""
    return " + ".join(f"{host} x {gpus}" for host, gpus in hosts)


def clock(at_s: float, now_s: float) -> str:
    """This machine's time of day, with the day where that is not `now_s`'s."""
    then = time.localtime(at_s)
    return time.strftime("%H:%M" if then[:3] == time.localtime(now_s)[:3] else "%a %d %b %H:%M", then)


def utc(at_s: float) -> str:
    """A time, of Unix seconds."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


ENDS = ("stop", "cancel", "delete", "remove", "rm", "end", "scancel")
"""Other systems' names of `kill`."""


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
