"""Bounds and checks of values from Agents and workers. Pure; the checks raise Malformed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

ID_MAX_CHARS = 256
TEXT_MAX_CHARS = 4096
GPUS_MAX = 1 << 20
"""An upper bound of the GPUs, gangs or jobs of any cluster or app."""
DEMAND_MAX = 1 << 16
"""Demands for more GPUs or gangs are cut to this."""
ROWS_MAX = 4096
JOBS_MAX = 2048
WORKERS_MAX = 8192
GPU_INDEX_MAX = 1023
COUNT_MAX = 1_000_000
"""The most rungs, launches and failures."""
STEP_MAX = 10**15
ITERATION_MAX_S = 1e7
RESTART_MAX_S = 1e9
RHO_MIN, RHO_MAX = 1e-6, 1e12
"""Bounds of rho; RHO_MAX stands for an infinite rho (an app that would never end)."""
WORK_MAX_GPU_S = 1e15
RATE_MAX = 1e12
SLOWDOWN_MAX = 1e3
SPEEDUP_MIN, SPEEDUP_MAX = 1e-3, 1e3
"""Bounds of speedups, which are coefficients of one linear program."""
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
    """A malformed message; the error names the field and the reason."""


def an_id(value: str, what: str, required: bool = True) -> str:
    """Check a name: printable, on one line and not too long."""
    if required and not value:
        raise Malformed(f"{what} is empty")
    if len(value) > ID_MAX_CHARS:
        raise Malformed(f"{what} is longer than {ID_MAX_CHARS} characters")
    if not value.isprintable():
        raise Malformed(f"{what} has characters that cannot be printed: {value[:64]!r}")
    return value


def a_count(value: int, what: str, least: int = 0, most: int = GPUS_MAX) -> int:
    """Check that a whole number is within bounds."""
    if not least <= value <= most:
        raise Malformed(f"{what} is {value}, not within {least} and {most}")
    return value


def up_to(value: int, most: int) -> int:
    """A whole number clipped to 0 .. `most`."""
    return min(most, max(0, value))


def a_step(value: int) -> int:
    """A training step, clipped to STEP_MAX."""
    return up_to(value, STEP_MAX)


def a_number(value: float, what: str, most: float) -> float:
    """Check that a number is finite and >= 0; returns it clipped to `most`."""
    if not math.isfinite(value) or value < 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return min(value, most)


def a_time(value: float, what: str) -> float:
    """Seconds of an iteration, clipped to ITERATION_MAX_S."""
    if not value >= 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return min(value, ITERATION_MAX_S)


def maybe(value: float, there: bool) -> float | None:
    """The number if it is present and finite, else None."""
    return value if there and math.isfinite(value) else None


def finite(value: float) -> float:
    """The number clipped to +-RHO_MAX; 0 if it is not finite."""
    return min(RHO_MAX, max(-RHO_MAX, value)) if math.isfinite(value) else 0.0


def a_rho(value: float, what: str) -> float:
    """Check a rho and clip it to its bounds; 0 means that the app has none."""
    if math.isnan(value) or value < 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return max(RHO_MIN, min(value, RHO_MAX)) if value else 0.0


def positive_rho(value: float, what: str) -> float:
    """Check that a rho is > 0, so that 1 / rho is finite; returns it clipped to its bounds."""
    if not value > 0:
        raise Malformed(f"{what} is {value}, not a number > 0")
    return max(RHO_MIN, min(value, RHO_MAX))


def few(values: Sized, what: str, most: int) -> None:
    """Check the number of entries."""
    if len(values) > most:
        raise Malformed(f"{what} has {len(values)} entries, at most {most} are read")


def small_enough(message: Any, kind: str | None) -> None:
    """Check that a message is not larger than its kind allows."""
    size, most = message.ByteSize(), SIZES.get(kind or "", ID_MAX_CHARS)
    if size > most:
        raise Malformed(f"{kind or 'a message of no known kind'} has {size} bytes, at most {most} are read")


def texts(values: Mapping[str, str]) -> dict[str, str]:
    """The names and values of a configuration, cut to the longest allowed."""
    few(values, "configuration", 1024)
    return {k[:ID_MAX_CHARS]: v[:TEXT_MAX_CHARS] for k, v in values.items()}
