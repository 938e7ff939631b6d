"""A TCP port that stays this worker's until its TensorFlow server binds it.

TensorFlow binds its port without SO_REUSEPORT, seconds after the gang was told of it. So the port is held in
two ways: by a bound socket until just before the program starts, and, as long as the supervisor lives, by a
name in Linux' abstract socket namespace that all workers of the machine respect. Ports below the ephemeral
range are taken, so that no outgoing connection gets it in between.
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
    """One port; a context manager that lets go of the name at its end."""

    def __init__(self, number: int, bound: socket.socket, name: socket.socket) -> None:
        self.number = number
        self._bound, self._name = bound, name

    def hand_over(self) -> None:
        """Unbinds the port for the program that starts now; its name stays held."""
        self._bound.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bound.close()
        self._name.close()


def reserve() -> ReservedPort:
    """A free port on all addresses of this machine."""
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
