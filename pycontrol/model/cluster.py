"""YARN's nodes, queues, applications, asks and containers, as plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field

from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

BEST_EFFORT = 1e-6
"""The weight of a queue of capacity 0: its apps get what the other queues leave."""
STANDIN = "standin"
"""How the use and the jobs of leases are named whose apps have no Agent."""


class Mode(enum.StrEnum):
    """What the plugin does."""

    ON = "on"
    SHADOW = "shadow"
    """It only tells: CapacityScheduler places GPUs."""
    OFF = "off"
    UNREADABLE = "unreadable"
    """The stored mode cannot be read or be in force: nothing new is placed, and nothing is ended."""


@value
class ModeSwitch:
    """The mode in force, and who switched it."""

    mode: Mode = Mode.ON
    queues: tuple[str, ...] = ()
    """Whose asks for GPUs Isonomy serves; empty: all."""
    by: str = ""
    at_s: float | None = None
    problem: str = ""
    """Why the mode is unreadable."""


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
    """YARN's node attributes; names may have a prefix, as in `rm.yarn.io/NAME`."""
    bad_gpus: frozenset[int] = frozenset()
    """Indices of GPUs that are out of order; no app gets them."""
    note: str = ""
    """A note for the operator."""
    decommissioning: bool = False
    """Whether it is being decommissioned: running containers may end, YARN starts no new ones."""
    partition: str = ""
    """YARN's node label; empty: the default partition."""
    untagged_gpus: int = 0
    """GPUs of containers that the control plane did not place; which ones they use is unknown."""
    withheld: str = ""
    """Why the plugin places nothing on it; empty if it does."""
    idle_since_s: Mapping[int, float] = field(default_factory=dict)
    """GPU index -> since when its container's processes are idle, Unix seconds."""

    @property
    def good_gpus(self) -> Sequence[int]:
        """Indices of the GPUs that are in order."""
        return [i for i in range(self.gpus) if i not in self.bad_gpus] if self.bad_gpus else range(self.gpus)


def attribute(attributes: Mapping[str, str], name: str) -> list[str]:
    """The values of a node attribute, under any prefix."""
    return [value for key, value in sorted(attributes.items()) if key.rpartition("/")[2] == name]


@value
class PartitionCapacity:
    """A queue's capacity in a partition: as fractions, and in GPUs if absolute resources are configured."""

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
    """The share of the queue that each of its users is guaranteed, 0 to 1."""
    user_limit_factor: float = -1.0
    """The limit of one user, as a multiple of the queue's capacity; negative: no limit."""
    partitions: Mapping[str, PartitionCapacity] = field(default_factory=dict)
    """Node label -> capacity, for the partitions that the queue may use; "" is the default partition."""
    default_partition: str = ""
    """The partition of asks without a node label expression."""
    stopped: bool = False
    unmanaged: bool = False
    """Whether CapacityScheduler serves its asks for GPUs, instead of the control plane."""

    def share(self, partition: str) -> PartitionCapacity:
        """Its capacity in a partition; none is guaranteed, and none refused, in one that it does not name."""
        given = PartitionCapacity(self.capacity, self.max_capacity)
        return self.partitions.get(partition, PartitionCapacity(0.0)) if partition and self.partitions else given

    def across(self, gpus_in: Mapping[str, int]) -> tuple[float, float]:
        """Its capacity and its maximum in all these partitions together, GPUs; `gpus_in`: partition -> GPUs."""
        shares = [(self.share(partition), gpus) for partition, gpus in gpus_in.items()]
        return sum(x.capacity * gpus for x, gpus in shares), sum(x.max_capacity * gpus for x, gpus in shares)

    def fractions(self, gpus_in: Mapping[str, int]) -> tuple[float, float]:
        """The same as fractions of all their GPUs; its capacity as a weight, which `BEST_EFFORT` is the least of."""
        parts = gpus_in if any(gpus_in) else {"": 1}
        least, most = (gpus / max(1, sum(parts.values())) for gpus in self.across(parts))
        return max(BEST_EFFORT, least), most


@value
class YarnApp:
    """An application in the ResourceManager; `attempt_id` is empty while no attempt runs."""

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
    """Hosts or racks to which it is limited; empty: any."""
    partition: str | None = None
    """Its node label expression; None: the queue's default."""
    master: bool = False
    """Whether it is for the application master's own container; an older plugin does not say so."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The key of the ask; a later ask with the same key replaces it."""
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
    """GPUs of its resource, also if `gpus` does not name them because the control plane did not place it."""
    ending: bool = False
    """Whether YARN has ended it and its NodeManager has not confirmed that yet; its GPUs are still in use."""
    plain: bool = False
    """Whether CapacityScheduler placed it: nobody leases its GPUs while it runs, and only YARN or its app ends it."""

    @property
    def unleased_gpus(self) -> int:
        """Its GPUs, if nobody leases them."""
        return len(self.gpus) or self.gpu_count if self.plain or not self.gpus else 0

    @property
    def is_master(self) -> bool:
        """Whether its application master runs in it: YARN numbers an attempt's containers, and that is the first."""
        return self.container_id.endswith("_000001")
