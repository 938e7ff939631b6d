"""Configurations drawn from a search space."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any


def sample(space: Mapping[str, Any] | None, rng: random.Random) -> dict[str, str]:
    """One configuration, as text; parameters are drawn in the order of their names."""
    parameters = parameters_of(space)
    return {name: _draw(parameters[name], rng) for name in sorted(parameters)}


def parameters_of(space: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The parameters of a search space by name."""
    found: Mapping[str, Any] = (space or {}).get("parameters", space or {})
    return found


def _draw(p: Mapping[str, Any], rng: random.Random) -> str:
    if p["type"] == "choice":
        return str(rng.choice(p["values"]))
    low, high = range_of(p)
    if p["type"] == "int" and not p.get("log"):
        return str(rng.randint(int(low), int(high)))
    return text(p, math.exp(rng.uniform(math.log(low), math.log(high))) if p.get("log") else rng.uniform(low, high))


def range_of(p: Mapping[str, Any]) -> tuple[float, float]:
    """(least, greatest) value of a parameter; accepts strings, because YAML reads 1e-3 as one."""
    low, high = (v if isinstance(v, int | float) else float(v) for v in (p["min"], p["max"]))
    return low, high


def text(p: Mapping[str, Any], value: float) -> str:
    """A number in the parameter's text form, clipped to its range."""
    low, high = range_of(p)
    if p["type"] == "int":
        return str(min(int(high), max(int(low), round(value))))
    return str(min(float(high), max(float(low), float(f"{value:.6g}"))))
