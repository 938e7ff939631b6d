"""What the leases and the cluster mean for each GPU: derived, and kept up to date GPU by GPU."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping

from pycontrol.arbiter.deadline_heap import DeadlineHeap
from pycontrol.arbiter.free_gpus import FreeGpus
from pycontrol.arbiter.lease import GRANTED, REVOKING, Lease
from pycontrol.model.topology import Gpu, count_by_host

End = tuple[float, Gpu]
"""When the lease of a GPU ends, or ended once."""


class GpuState(enum.StrEnum):
    """What a GPU is in: one of these at any time."""

    AWAY = "away"
    """No machine that is up has it, and nobody holds it."""
    BAD = "bad"
    """Out of order, and nobody holds it."""
    FREE = "free"
    """A round may grant it."""
    WITHHELD = "withheld"
    """Nobody holds it; its machine is drained or closed to new containers."""
    OCCUPIED = "occupied"
    """Nobody holds it, and a container is still there."""
    GRANTED = "granted"
    """Leased, and its app has said nothing of what runs there."""
    PLANNED = "planned"
    """Leased, and a worker waits to be placed."""
    PLACING = "placing"
    """Leased, and its worker's container is under way."""
    STARTING = "starting"
    """Leased; a container is there that was not launched yet, or is no longer the lease's."""
    ACTIVE = "active"
    """Leased, and its container was launched."""
    REVOKING = "revoking"
    """To be given back; a round may promise it."""
    RESERVED = "reserved"
    """To be given back, and its next owner is known."""


class GpuIndex:
    """Free and revoked GPUs, and when time touches a lease. Changes by its methods alone; any part may read it."""

    def __init__(self, grant_timeout_s: float, lead_s: float) -> None:
        self._grant_timeout_s, self._lead_s = grant_timeout_s, lead_s
        self.free = FreeGpus()
        self.revoking: set[Gpu] = set()
        """GPUs whose leases are being revoked."""
        self.open: set[Gpu] = set()
        """GPUs whose leases last until somebody else wants them."""
        self.alarms = DeadlineHeap()
        """When `leases.expire` must look at a GPU."""
        self.ends = DeadlineHeap()
        """The ends of leases that go on offer."""

    def copy(self) -> GpuIndex:
        """The same, apart."""
        other = GpuIndex(self._grant_timeout_s, self._lead_s)
        other.free, other.revoking, other.open = self.free.copy(), set(self.revoking), set(self.open)
        other.alarms, other.ends = self.alarms.copy(), self.ends.copy()
        return other

    def reset(self) -> None:
        """No GPU is known to be free."""
        self.free.clear()

    def none_free_on(self, host: str) -> None:
        """The host changed: none of its GPUs is known to be free."""
        for gpu in self.free.on(host):
            self.free.take(gpu)

    def unleased(self, gpu: Gpu, free: bool) -> None:
        """Nobody holds the GPU; `free`: it can be leased."""
        self.revoking.discard(gpu)
        self.open.discard(gpu)
        if free:
            self.free.put(gpu)
        else:
            self.free.take(gpu)

    def leased(self, lease: Lease, renews_itself: bool) -> None:
        """The lease of a GPU; `renews_itself`: the stand-in's, which no round renews."""
        gpu = lease.gpu
        self.free.take(gpu)
        if lease.state == REVOKING:
            self.revoking.add(gpu)
            self.open.discard(gpu)
            self.alarms.put(lease.end_s, gpu)
            return
        self.revoking.discard(gpu)
        if lease.end_s == math.inf:
            self.open.add(gpu)
        else:
            self.open.discard(gpu)
            self.ends.put(lease.end_s, gpu)
        if lease.state == GRANTED and lease.unused_since_s is not None:
            self.alarms.put(lease.unused_since_s + self._grant_timeout_s, gpu)
        elif renews_itself:
            self.alarms.put(lease.end_s - self._lead_s, gpu)

    # ---- when a GPU must be looked at

    def look_at(self, gpu: Gpu, at_s: float) -> None:
        """Time does something to the GPU's lease or container then."""
        self.alarms.put(at_s, gpu)

    def next_look_s(self) -> float | None:
        """When a GPU must be looked at next."""
        return self.alarms.heap[0][0] if self.alarms.heap else None

    def due(self, now_s: float) -> set[Gpu]:
        """The GPUs that must be looked at by now; each once."""
        found: set[Gpu] = set()
        heap = self.alarms.heap
        while heap and heap[0][0] <= now_s:
            found.add(self.alarms.pop()[1])
        return found

    # ---- when leases go on offer

    def may_go_on_offer(self, now_s: float) -> bool:
        """Whether a lease may end within a lead: the quick answer, by ends that may be out of date."""
        return bool(self.ends.heap) and self.ends.heap[0][0] - self._lead_s <= now_s

    def first_end_s(self, in_force: Callable[[End], bool]) -> float | None:
        """The first end of a lease; ends that are not `in_force` are forgotten."""
        heap = self.ends.heap
        while heap and not in_force(heap[0]):
            self.ends.pop()
        return heap[0][0] if heap else None

    def ends_by(self, at_s: float, in_force: Callable[[End], bool]) -> list[Gpu]:
        """The GPUs whose leases end by then, in the order of the ends; ends that are not `in_force` are forgotten."""
        heap, found = self.ends.heap, dict[End, None]()
        while heap and heap[0][0] <= at_s:
            end = self.ends.pop()
            if in_force(end):
                found[end] = None
        for end in found:
            self.ends.put(*end)
        return [gpu for _, gpu in found]

    def validate(self, leases: Mapping[Gpu, Lease], free: set[Gpu]) -> Iterator[tuple[Gpu | None, str]]:
        """What is not as it follows from the leases and the GPUs that are free: (GPU, what is wrong)."""
        for name, mine, right in (
            ("free", set(self.free), free),
            ("being revoked", self.revoking, {g for g, x in leases.items() if x.state == REVOKING}),
            ("open", self.open, {g for g, x in leases.items() if x.end_s == math.inf and x.state != REVOKING}),
        ):
            for gpu in sorted(mine ^ right):
                yield gpu, f"it is {'not ' if gpu in mine else ''}{name}, and the index says otherwise"
        if (self.free.counts(), self.free.count) != (count_by_host(free), len(free)):
            yield None, "the counts of free GPUs are not those of the free GPUs"
