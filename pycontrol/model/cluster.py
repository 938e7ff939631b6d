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
    decommissioning: bool = False
    """It is being taken out of the cluster: its containers may end, YARN starts no more on it."""
    partition: str = ""
    """YARN's node label; empty: the default partition."""
    untagged_gpus: int = 0
    """GPUs of containers that the control plane did not place; which ones they use is unknown."""
    withheld: str = ""
    """Why the plugin places nothing on it; empty: it does."""

    @property
    def good_gpus(self) -> Sequence[int]:
        """Indices of the GPUs that are in order."""
        return [i for i in range(self.gpus) if i not in self.bad_gpus] if self.bad_gpus else range(self.gpus)


def attribute(attributes: Mapping[str, str], name: str) -> list[str]:
    """The values of a node attribute, under whichever prefixes it was set."""
    return [value for key, value in sorted(attributes.items()) if key.rpartition("/")[2] == name]


@value
class PartitionCapacity:
    """What a queue has of a partition: fractions of it, or GPUs where absolute resources are configured."""

    capacity: float = 1.0
    max_capacity: float = 1.0
    gpus: int | None = None
    max_gpus: int | None = None


@value
class Queue:
    """A queue; capacities are fractions of the default partition."""

    path: str
    capacity: float = 1.0
    max_capacity: float = 1.0
    leaf: bool = True
    user_limit: float = 1.0
    """The least share of the queue that each of its users can count on, 0 to 1."""
    user_limit_factor: float = -1.0
    """How many times the queue's capacity one user may have; negative: no limit."""
    partitions: Mapping[str, PartitionCapacity] = field(default_factory=dict)
    """By node label, the default partition under "": those that the queue may use."""
    default_partition: str = ""
    """Where asks without a node label expression go."""
    stopped: bool = False
    unmanaged: bool = False
    """CapacityScheduler serves its asks for GPUs, not the control plane."""


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
    priority: int = 0
    """YARN's application priority; higher is more important."""


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
    """Hosts or racks that it is limited to; empty: any."""
    partition: str | None = None
    """Its node label expression; None: that of its queue."""
    placement_constraint: str = ""
    """As YARN prints it; empty: none."""

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
    gpu_count: int = 0
    """GPUs of its resource, also where `gpus` does not name them: nobody but YARN placed it."""
    ending: bool = False
    """YARN has ended it, its NodeManager has not said so yet: its GPUs are in use."""
