"""Reserves TCP ports for this worker until its TensorFlow servers bind them.

TensorFlow binds its port without SO_REUSEPORT, seconds after the gang was told the number. So a port is reserved in
two ways: by a bound socket until just before the program starts, and, as long as the supervisor lives, by a name in
Linux's abstract socket namespace that all workers of the machine respect. Only ports below the ephemeral range are
used, so that no outgoing connection takes one in between.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000
TRIES = 500


class NoPortError(Exception):
    """No free port was found."""


class ReservedPort:
    """Consecutive reserved ports from `number`."""

    def __init__(self, number: int, bound: list[socket.socket], names: list[socket.socket]) -> None:
        self.number = number
        self._bound, self._names = bound, names

    def hand_over(self) -> None:
        """Unbind the ports for the programs that start now; their names stay reserved."""
        for bound in self._bound:
            bound.close()

    def close(self) -> None:
        """Release them."""
        for held in (*self._bound, *self._names):
            held.close()


def reserve(count: int = 1) -> ReservedPort:
    """Reserve consecutive ports that are free on all addresses of this machine; raises NoPortError."""
    highest = _below_ephemeral() - count + 1
    for number in random.sample(range(LOWEST, highest), min(TRIES, max(0, highest - LOWEST))):
        reserved = _try(number, count)
        if reserved is not None:
            return reserved
    raise NoPortError(f"no {count} free TCP ports in a row between {LOWEST} and {highest}")


def _below_ephemeral() -> int:
    try:
        low = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32_768
    return low if low > LOWEST + TRIES else 65_535


def _try(number: int, count: int) -> ReservedPort | None:
    names = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
    bound = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for i in range(count):
            names[i].bind(f"\0isonomy-port-{number + i}")
            bound[i].bind(("", number + i))
    except OSError:
        for held in (*names, *bound):
            held.close()
        return None
    return ReservedPort(number, bound, names)
