"""Reserves a TCP port for this worker until its TensorFlow server binds it.

TensorFlow binds its port without SO_REUSEPORT, seconds after the gang was told the number. So the port is reserved in
two ways: by a bound socket until just before the program starts, and, as long as the supervisor lives, by a name in
Linux's abstract socket namespace that all workers of the machine respect. Only ports below the ephemeral range are
used, so that no outgoing connection takes one in between.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from types import TracebackType

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000
TRIES = 500


class NoPortError(Exception):
    """No free port was found."""


class ReservedPort:
    """A reserved port; a context manager that releases it."""

    def __init__(self, number: int, bound: socket.socket, name: socket.socket) -> None:
        self.number = number
        self._bound, self._name = bound, name

    def hand_over(self) -> None:
        """Unbind the port for the program that starts now; its name stays reserved."""
        self._bound.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bound.close()
        self._name.close()


def reserve() -> ReservedPort:
    """Reserve a port that is free on all addresses of this machine; raises NoPortError."""
    highest = _below_ephemeral()
    for number in random.sample(range(LOWEST, highest), min(TRIES, highest - LOWEST)):
        reserved = _try(number)
        if reserved is not None:
            return reserved
    raise NoPortError(f"no free TCP port between {LOWEST} and {highest}")


def _below_ephemeral() -> int:
    try:
        low = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32_768
    return low if low > LOWEST + TRIES else 65_535


def _try(number: int) -> ReservedPort | None:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        name.bind(f"\0isonomy-port-{number}")
        bound.bind(("", number))
    except OSError:
        name.close()
        bound.close()
        return None
    return ReservedPort(number, bound, name)
