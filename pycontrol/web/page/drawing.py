"""Geometry of the page's drawings: plain numbers for SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

WIDE, HIGH = 600.0, 120.0
T = TypeVar("T")


def stacked(parts: Iterable[tuple[str, int]], whole: int) -> list[dict[str, Any]]:
    """Parts of a bar of 100: {kind, n, x, width}; empty ones are left out."""
    found: list[dict[str, Any]] = []
    x = 0.0
    for kind, n in parts:
        if n > 0:
            width = 100.0 * n / whole
            found.append({"kind": kind, "n": n, "x": round(x, 3), "width": round(width, 3)})
            x += width
    return found


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most `most` of them, evenly, the last one among them."""
    step = -(-len(values) // most) if values else 1
    return list(values[::-1][::step][::-1])


def lines(at_s: Sequence[float], series: Sequence[Mapping[str, Any]], most: float = math.inf) -> list[dict[str, Any]]:
    """A polyline for each series, in a box of WIDE x HIGH with 0 (or the least) at the bottom, `most` at the top if one
    is larger; the scale is shared."""
    numbers = [x for s in series for x in s["values"] if x is not None]
    if len(at_s) < 2 or not numbers:
        return []
    low, high = min(0.0, *numbers), min(max(1.0, *numbers), most)
    begin, wide = at_s[0], max(1e-9, at_s[-1] - at_s[0])
    found = []
    for s in series:
        points = [
            f"{WIDE * (t - begin) / wide:.1f},{HIGH * (1 - (x - low) / (high - low)):.1f}"
            for t, x in zip(at_s, s["values"], strict=True)
            if x is not None
        ]
        found.append({"name": s["name"], "colour": s["colour"], "points": " ".join(points)})
    return found


def spark(values: Sequence[tuple[float, float]], wide: float = 96.0, high: float = 20.0) -> str:
    """(x, y) as a polyline in a small box; empty with fewer than two points."""
    if len(values) < 2:
        return ""
    xs, ys = [x for x, _ in values], [y for _, y in values]
    width, height = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    return " ".join(
        f"{1 + (wide - 2) * (x - min(xs)) / width:.1f},{high - 1 - (high - 2) * (y - min(ys)) / height:.1f}"
        for x, y in values
    )


def ticks(begin_s: float, end_s: float, most: int = 6) -> list[float]:
    """Round times between two: full minutes, hours or days apart."""
    steps = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 7 * 86400)
    step = next((s for s in steps if (end_s - begin_s) / s <= most), steps[-1])
    first = -(-begin_s // step) * step
    found: list[float] = []
    while first <= end_s and len(found) < 2 * most:
        found.append(float(first))
        first += step
    return found
