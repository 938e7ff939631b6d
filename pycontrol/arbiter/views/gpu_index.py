"""An index of GPUs by what their leases and nodes imply; derived, and updated GPU by GPU."""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from pycontrol.arbiter.ledger.lease import ACTIVE, GRANTED, REVOKING, Lease
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.tags import MAX_HOURS, is_interactive, max_s
from pycontrol.model.topology import Gpu, count_by_host
from pycontrol.model.value import value

End = tuple[float, Gpu]
"""(end of a lease, its first GPU); it may be out of date."""


class GpuState(enum.StrEnum):
    """The state of a GPU; each GPU is in exactly one."""

    AWAY = "away"
    """Not leased; its machine is not up."""
    BAD = "bad"
    """Not leased; out of order."""
    FREE = "free"
    """Not leased; a round may grant it."""
    WITHHELD = "withheld"
    """Not leased; its machine is drained or closed to new containers."""
    OCCUPIED = "occupied"
    """Not leased; a container still uses it."""
    GRANTED = "granted"
    """Leased; its app has not planned a worker there."""
    PLANNED = "planned"
    """Leased; a worker waits to be placed."""
    PLACING = "placing"
    """Leased; the placement of its worker was sent."""
    STARTING = "starting"
    """Leased; a container uses it that was not launched yet, or that no longer belongs to the lease."""
    ACTIVE = "active"
    """Leased; its container was launched."""
    REVOKING = "revoking"
    """Being revoked; a round may reserve it."""
    RESERVED = "reserved"
    """Being revoked, and reserved for its next lease."""


class GpuIndex:
    """Free and revoking GPUs, and times at which leases need attention.

    Only its methods change it; any part may read it.
    """

    def __init__(self, grant_timeout_s: float, lead_s: float) -> None:
        self._grant_timeout_s, self._lead_s = grant_timeout_s, lead_s
        self.free = FreeGpus()
        self.usable: dict[str, int] = {}
        """Host -> its good GPUs, for hosts that take new containers."""
        self.hosts_changes = 0
        """Counts changes of hosts, so that what depends on `usable` can tell that it is stale."""
        self.revoking: set[Gpu] = set()
        """GPUs with leases that are being revoked."""
        self.open: set[Gpu] = set()
        """GPUs with open-ended leases: they last until a round could do more than renew them."""
        self.alarms = DeadlineHeap()
        """Times at which `leases.expire` must look at a GPU."""
        self.ends = DeadlineHeap()
        """Ends of leases, after which rounds put GPUs on offer."""

    def copy(self) -> GpuIndex:
        """An independent copy."""
        other = GpuIndex(self._grant_timeout_s, self._lead_s)
        other.free, other.revoking, other.open = self.free.copy(), set(self.revoking), set(self.open)
        other.usable = dict(self.usable)
        other.alarms, other.ends = self.alarms.copy(), self.ends.copy()
        return other

    def reset(self) -> None:
        """Clears the free GPUs, before all GPUs are indexed again."""
        self.free.clear()
        self.usable.clear()
        self.hosts_changes += 1

    def host_changed(self, host: str, usable: int) -> None:
        """Sets how many GPUs of a host may be leased at all, and clears the free ones, which are then indexed again."""
        if usable:
            self.usable[host] = usable
        else:
            self.usable.pop(host, None)
        self.hosts_changes += 1
        for gpu in self.free.on(host):
            self.free.take(gpu)

    def unleased(self, gpu: Gpu, free: bool) -> None:
        """Indexes a GPU without a lease; `free`: it can be leased."""
        self.revoking.discard(gpu)
        self.open.discard(gpu)
        if free:
            self.free.put(gpu)
        else:
            self.free.take(gpu)

    def leased(self, lease: Lease, renews_itself: bool) -> None:
        """Indexes a lease's GPUs; `renews_itself`: a lease of an unmanaged app, which no round renews."""
        first = lease.gpus[0]
        for gpu in lease.gpus:
            self.free.take(gpu)
        if lease.state == REVOKING:
            self.revoking.update(lease.gpus)
            self.open.difference_update(lease.gpus)
            self.alarms.put(lease.end_s, first)
            return
        self.revoking.difference_update(lease.gpus)
        if lease.end_s == math.inf:
            self.open.update(lease.gpus)
        else:
            self.open.difference_update(lease.gpus)
            self.ends.put(lease.end_s, first)
        if lease.state == GRANTED and lease.unused_since_s is not None:
            self.alarms.put(lease.unused_since_s + self._grant_timeout_s, first)
        elif renews_itself:
            self.alarms.put(lease.end_s - self._lead_s, first)

    # ---- times at which a GPU must be looked at

    def look_at(self, gpu: Gpu, at_s: float) -> None:
        """Sets a time at which `leases.expire` must look at the GPU."""
        self.alarms.put(at_s, gpu)

    def next_look_s(self) -> float | None:
        """When the next GPU must be looked at; None if none."""
        return self.alarms.heap[0][0] if self.alarms.heap else None

    def due(self, now_s: float) -> set[Gpu]:
        """Removes and returns the GPUs that must be looked at by now."""
        found: set[Gpu] = set()
        heap = self.alarms.heap
        while heap and heap[0][0] <= now_s:
            found.add(self.alarms.pop()[1])
        return found

    # ---- when leases go on offer

    def may_go_on_offer(self, now_s: float) -> bool:
        """Whether a lease may end within the lead; quick, as it uses ends that may be out of date."""
        return bool(self.ends.heap) and self.ends.heap[0][0] - self._lead_s <= now_s

    def to_offer(self, gpu: Gpu, end_s: float) -> None:
        """Enters the end of the GPU's lease again, which was dropped while the lease renewed itself."""
        self.ends.put(end_s, gpu)

    def first_end_s(self, in_force: Callable[[End], bool]) -> float | None:
        """The first end of a lease; drops ends that are not `in_force`."""
        heap = self.ends.heap
        while heap and not in_force(heap[0]):
            self.ends.pop()
        return heap[0][0] if heap else None

    def ends_by(self, at_s: float, in_force: Callable[[End], bool]) -> list[Gpu]:
        """First GPUs of leases that end by `at_s`, in the order of the ends; drops ends that are not `in_force`."""
        heap, found = self.ends.heap, dict[End, None]()
        while heap and heap[0][0] <= at_s:
            end = self.ends.pop()
            if in_force(end):
                found[end] = None
        for end in found:
            self.ends.put(*end)
        return [gpu for _, gpu in found]

    def validate(
        self, leases: Mapping[Gpu, Lease], free: set[Gpu], usable: Mapping[str, int]
    ) -> Iterator[tuple[Gpu | None, str]]:
        """Yields (GPU or None, what is wrong) where the index does not follow from leases, free and usable GPUs."""
        if self.usable != usable:
            yield None, f"usable GPUs by host are {usable}, the index has {self.usable}"
        for name, mine, right in (
            ("free", set(self.free), free),
            ("being revoked", self.revoking, {g for g, x in leases.items() if x.state == REVOKING}),
            ("open", self.open, {g for g, x in leases.items() if x.end_s == math.inf and x.state != REVOKING}),
        ):
            for gpu in sorted(mine ^ right):
                yield gpu, f"it is {'not ' if gpu in mine else ''}{name}, but the index disagrees"
        for gpu in sorted(g for g in self.open if g in leases and not leases[g].guaranteed):
            yield gpu, "it is borrowed, and its lease has no end"
        if (self.free.counts(), self.free.count) != (count_by_host(free), len(free)):
            yield None, "the counts of free GPUs do not match the free GPUs"


class FreeGpus:
    """A set of GPUs with counts by host."""

    def __init__(self) -> None:
        self._on: dict[str, set[int]] = {}
        self._counts: dict[str, int] = {}
        self.count = 0

    def __iter__(self) -> Iterator[Gpu]:
        return (Gpu(host, index) for host, indices in self._on.items() for index in indices)

    def __contains__(self, gpu: object) -> bool:
        return isinstance(gpu, Gpu) and gpu.index in self._on.get(gpu.host, ())

    def copy(self) -> FreeGpus:
        """An independent copy."""
        other = FreeGpus()
        other._on = {host: set(indices) for host, indices in self._on.items()}
        other._counts, other.count = dict(self._counts), self.count
        return other

    def put(self, gpu: Gpu) -> None:
        """Adds a GPU."""
        here = self._on.setdefault(gpu.host, set())
        if gpu.index not in here:
            here.add(gpu.index)
            self._counts[gpu.host] = len(here)
            self.count += 1

    def take(self, gpu: Gpu) -> None:
        """Removes a GPU, if it is in the set."""
        here = self._on.get(gpu.host)
        if here is not None and gpu.index in here:
            here.discard(gpu.index)
            self.count -= 1
            if here:
                self._counts[gpu.host] = len(here)
            else:
                del self._on[gpu.host], self._counts[gpu.host]

    def on(self, host: str) -> list[Gpu]:
        """The free GPUs of a host, sorted."""
        return [Gpu(host, index) for index in sorted(self._on.get(host, ()))]

    def counts(self) -> dict[str, int]:
        """Host -> its number of free GPUs, for hosts that have any."""
        return dict(self._counts)

    def clear(self) -> None:
        """Removes all GPUs."""
        self._on.clear()
        self._counts.clear()
        self.count = 0


class DeadlineHeap:
    """A heap of times and GPUs. Setting a GPU's time again leaves the old entry, which does no harm."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, Gpu]] = []
        self._set: dict[Gpu, float] = {}
        """The newest time of each GPU with an entry, so that setting the same time again adds none."""

    def copy(self) -> DeadlineHeap:
        """An independent copy."""
        other = DeadlineHeap()
        other.heap, other._set = list(self.heap), dict(self._set)
        return other

    def put(self, at_s: float, gpu: Gpu) -> None:
        """Adds a time at which the GPU must be looked at."""
        if self._set.get(gpu) != at_s:
            self._set[gpu] = at_s
            heapq.heappush(self.heap, (at_s, gpu))

    def pop(self) -> tuple[float, Gpu]:
        """Removes the earliest entry and returns it."""
        entry = heapq.heappop(self.heap)
        if self._set.get(entry[1]) == entry[0]:
            del self._set[entry[1]]
        return entry


def pick(free: Sequence[Gpu], coming: Sequence[tuple[float, Gpu]], n: int, slot_gpus: int) -> list[Gpu]:
    """`n` of a machine's GPUs, fewer if it has fewer: free ones, then those that come free first.

    `coming`: (when it comes free, GPU), ascending. A gang that waits for some of them may as well have others that come
    no later: with slots, those that make its slots the fewest.
    """
    if len(free) >= n:
        return choose(free, n, slot_gpus)
    needed = coming[: n - len(free)]
    if slot_gpus < 2 or len(free) + len(needed) < n:
        return [*free, *(gpu for _, gpu in needed)]
    last_s = needed[-1][0]
    return choose([*free, *(gpu for at_s, gpu in coming if at_s <= last_s)], n, slot_gpus)


def choose(free: Sequence[Gpu], n: int, slot_gpus: int) -> list[Gpu]:
    """`n` of a machine's free GPUs, at least as many, in as few slots of `slot_gpus` consecutive indices as possible.

    The last slot is the fullest one that still has room, so that whole slots stay for others. Ties go to the lowest
    index; without slots these are the lowest indices.
    """
    ordered = sorted(free)
    if slot_gpus < 2:
        return ordered[:n]
    slots = grouped((gpu.index // slot_gpus, gpu) for gpu in ordered)
    found: list[Gpu] = []
    while len(found) < n:
        rest = n - len(found)
        number = min(slots, key=lambda k: (len(slots[k]) < rest, abs(len(slots[k]) - rest), k))
        found += slots.pop(number)[:rest]
    return sorted(found)


@value
class Limit:
    """The time from which a lease is revoked (Unix seconds), and why."""

    at_s: float
    cause: Cause


def limit(lease: Lease, app: YarnApp | None, node: Node | None, interactive_idle_s: float) -> Limit | None:
    """The first limit of an unmanaged app's lease; None if it has none."""
    if lease.state != ACTIVE or lease.started_s is None:
        return None
    found = []
    longest_s = max_s(app)
    if longest_s is not None:
        text = f"its {longest_s / 3600:g} h are over ({MAX_HOURS})"
        found.append(Limit(lease.started_s + longest_s, Cause(EndReason.TIME_LIMIT, text)))
    idle = [node.idle_since_s[gpu.index] for gpu in lease.gpus if gpu.index in node.idle_since_s] if node else []
    idle_since_s = min(idle, default=None)
    if idle_since_s is not None and is_interactive(app):
        text = f"interactive, and idle for {interactive_idle_s:g} s"
        from_s = max(idle_since_s, lease.started_s)
        found.append(Limit(from_s + interactive_idle_s, Cause(EndReason.IDLE, text)))
    return min(found, key=lambda x: x.at_s, default=None)
