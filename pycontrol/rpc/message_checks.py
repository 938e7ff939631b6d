"""Checks of values from Agents and workers by the table of bounds. Pure; the checks raise Malformed.

A number's row is that of the last word of its name: `bid.rows[3].gang_gpus` is held against `gang_gpus`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

from pycontrol.model.bounds import GPUS_MAX, METRIC, RHO, STEP, Bound, bound

ID_MAX_CHARS = 256
TEXT_MAX_CHARS = 4096
CONFIGURATION_BYTES, ENTRY_BYTES = 8 << 10, 64
"""Of a configuration, which is kept for long after its app's end: in all, and what an entry counts beside its text."""
DEMAND_MAX = 1 << 16
"""Demands for more GPUs or gangs are cut to this."""
ROWS_MAX = 4096
JOBS_MAX = 2048
WORKERS_MAX = 8192
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


def _row(what: str) -> Bound:
    return bound(what.replace(" ", ".").rpartition(".")[2])


def a_count(value: int, what: str, least: int = 0, most: int = GPUS_MAX) -> int:
    """Check that a whole number is within its bounds, and from `least` to `most`."""
    low, high = max(least, int(_row(what).low)), min(most, int(_row(what).high))
    if not low <= value <= high:
        raise Malformed(f"{what} is {value}, not within {low} and {high}")
    return value


def up_to(value: int, most: int) -> int:
    """A whole number clipped to 0 .. `most`."""
    return min(most, max(0, value))


def a_step(value: int) -> int:
    """A training step, clipped to its bounds."""
    return int(STEP.clip(value))


def a_number(value: float, what: str, infinite: bool = False) -> float:
    """Check that a number is >= 0, and finite unless `infinite` is allowed; returns it clipped to its bounds."""
    if not value >= 0 or (math.isinf(value) and not infinite):
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return _row(what).clip(value)


def maybe(value: float, there: bool) -> float | None:
    """The number if it is present and finite, clipped to its bounds; else None."""
    return METRIC.clip(value) if there and math.isfinite(value) else None


def finite(value: float) -> float:
    """The number clipped to the bounds of metrics; 0 if it is not finite."""
    return METRIC.clip(value) if math.isfinite(value) else 0.0


def a_rho(value: float, what: str) -> float:
    """Check a rho and clip it to its bounds; 0 means that the app has none."""
    return positive_rho(value, what) if value else 0.0


def positive_rho(value: float, what: str) -> float:
    """Check that a rho is > 0, so that 1 / rho is finite; returns it clipped to its bounds."""
    if not value > 0:
        raise Malformed(f"{what} is {value}, not a number > 0")
    return RHO.clip(value)


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
    """The names and values of a configuration, cut to the longest allowed; of a large one as many as fit."""
    few(values, "configuration", 1024)
    found, left = dict[str, str](), CONFIGURATION_BYTES
    for name, value in values.items():
        name, value = name[:ID_MAX_CHARS], value[:TEXT_MAX_CHARS]
        left -= ENTRY_BYTES + len((name + value).encode())
        if left < 0:
            break
        found[name] = value
    return found
