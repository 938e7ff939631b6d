"""Bounds of what Agents and workers say, and the checks by them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

ID_MAX_CHARS = 256
TEXT_MAX_CHARS = 4096
GPUS_MAX = 1 << 20
"""More GPUs, gangs or jobs than any cluster or app has."""
DEMAND_MAX = 1 << 16
"""Of GPUs or gangs: a greater demand means no more."""
ROWS_MAX = 4096
JOBS_MAX = 2048
WORKERS_MAX = 8192
GPU_INDEX_MAX = 1023
COUNT_MAX = 1_000_000
"""Of rungs, launches and failures."""
STEP_MAX = 10**15
ITERATION_MAX_S = 1e7
RESTART_MAX_S = 1e9
RHO_MIN, RHO_MAX = 1e-6, 1e12
"""RHO_MAX is what an infinite rho (an app that would never end) counts as."""
WORK_MAX_GPU_S = 1e15
RATE_MAX = 1e12
SLOWDOWN_MAX = 1e3
SPEEDUP_MIN, SPEEDUP_MAX = 1e-3, 1e3
"""Programs by shares solve with these in one matrix."""
SIZES = {
    "register": 256 << 10,
    "rho": 64 << 10,
    "use": 512 << 10,
    "released": 256 << 10,
    "progress": 512 << 10,
    "done": 128 << 10,
    "to_worker": 256 << 10,
}
"""Bytes of an Agent's messages, by kind; a bid may be as large as any message."""


class Malformed(Exception):
    """A message that cannot be read; says which field and why."""


def an_id(value: str, what: str, required: bool = True) -> str:
    """A name: not too long, on one line."""
    if required and not value:
        raise Malformed(f"{what} is empty")
    if len(value) > ID_MAX_CHARS:
        raise Malformed(f"{what} is longer than {ID_MAX_CHARS} characters")
    if not value.isprintable():
        raise Malformed(f"{what} has characters that cannot be printed: {value[:64]!r}")
    return value


def a_count(value: int, what: str, least: int = 0, most: int = GPUS_MAX) -> int:
    """A whole number within bounds."""
    if not least <= value <= most:
        raise Malformed(f"{what} is {value}, not within {least} and {most}")
    return value


def up_to(value: int, most: int) -> int:
    """A whole number that means no more beyond a bound."""
    return min(most, max(0, value))


def a_step(value: int) -> int:
    """A training step."""
    return up_to(value, STEP_MAX)


def a_number(value: float, what: str, most: float) -> float:
    """A number >= 0, which means no more beyond a bound."""
    if not math.isfinite(value) or value < 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return min(value, most)


def a_time(value: float, what: str) -> float:
    """Seconds of an iteration."""
    if not value >= 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return min(value, ITERATION_MAX_S)


def maybe(value: float, there: bool) -> float | None:
    """The number, None where there is none."""
    return value if there and math.isfinite(value) else None


def finite(value: float) -> float:
    """The number, 0 where it is none."""
    return min(RHO_MAX, max(-RHO_MAX, value)) if math.isfinite(value) else 0.0


def a_rho(value: float, what: str) -> float:
    """A rho; 0 says that the app has none."""
    if math.isnan(value) or value < 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return max(RHO_MIN, min(value, RHO_MAX)) if value else 0.0


def positive_rho(value: float, what: str) -> float:
    """A rho whose valuation is a number, too."""
    if not value > 0:
        raise Malformed(f"{what} is {value}, not a number > 0")
    return max(RHO_MIN, min(value, RHO_MAX))


def few(values: Sized, what: str, most: int) -> None:
    """Not too many entries."""
    if len(values) > most:
        raise Malformed(f"{what} has {len(values)} entries, at most {most} are read")


def small_enough(message: Any, kind: str | None) -> None:
    """A message of this kind is no larger than its kind ever is."""
    size, most = message.ByteSize(), SIZES.get(kind or "", ID_MAX_CHARS)
    if size > most:
        raise Malformed(f"{kind or 'a message of no known kind'} has {size} bytes, at most {most} are read")


def texts(values: Mapping[str, str]) -> dict[str, str]:
    """Names and values of a configuration, cut where they are longer than any."""
    few(values, "configuration", 1024)
    return {k[:ID_MAX_CHARS]: v[:TEXT_MAX_CHARS] for k, v in values.items()}
