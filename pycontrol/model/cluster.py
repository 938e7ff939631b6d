"""What YARN says: nodes, applications, asks and containers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


@value
class Node:
    """A NodeManager. `node_id` is YARN's host:port."""

    node_id: str
    host: str
    rack: str
    gpus: int
    memory_mb: int = 0
    vcores: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    """YARN's node attributes; their names may have a prefix, as in `rm.yarn.io/NAME`."""
    bad_gpus: frozenset[int] = frozenset()
    """Indices of GPUs that are out of order: nobody gets them."""
    note: str = ""
    """What an operator should know of it."""

    @property
    def good_gpus(self) -> Sequence[int]:
        """Indices of the GPUs that are in order."""
        return [i for i in range(self.gpus) if i not in self.bad_gpus] if self.bad_gpus else range(self.gpus)


def attribute(attributes: Mapping[str, str], name: str) -> list[str]:
    """The values of a node attribute, under whichever prefixes it was set."""
    return [value for key, value in sorted(attributes.items()) if key.rpartition("/")[2] == name]


@value
class Queue:
    """A leaf queue; capacities are fractions of the cluster."""

    path: str
    capacity: float = 1.0
    max_capacity: float = 1.0


@value
class YarnApp:
    """An application as the ResourceManager knows it. `attempt_id` is empty while none runs."""

    app_id: str
    user: str
    queue: str
    name: str
    application_type: str = ""
    submitted_s: float = 0.0
    tags: frozenset[str] = frozenset()
    attempt_id: str = ""


@value
class Ask:
    """An outstanding request for `count` containers of `gpus` GPUs each; `count` is absolute."""

    attempt_id: str
    app_id: str
    allocation_request_id: int
    gpus: int
    count: int
    priority: int = 0
    memory_mb: int = 0
    vcores: int = 0
    only_on: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What makes it one ask: a later one with this key replaces it."""
        return (self.attempt_id, self.allocation_request_id, self.priority, self.gpus)


@value
class Container:
    """A live container with GPUs."""

    container_id: str
    app_id: str
    node_id: str
    gpus: tuple[Gpu, ...]
    lease_id: str = ""
    allocation_request_id: int = 0
    attempt_id: str = ""
