"""Times at which GPUs must be looked at."""

from __future__ import annotations

import heapq

from pycontrol.model.topology import Gpu


class DeadlineHeap:
    """A heap of times and GPUs. Setting a GPU's time again leaves the old entry, which does no harm."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, Gpu]] = []
        self._set: dict[Gpu, float] = {}
        """The newest time of each GPU while its entry is in the heap: a lease is looked at often, and seldom moves."""

    def copy(self) -> DeadlineHeap:
        """The same times, apart."""
        other = DeadlineHeap()
        other.heap, other._set = list(self.heap), dict(self._set)
        return other

    def put(self, at_s: float, gpu: Gpu) -> None:
        """The GPU must be looked at then."""
        if self._set.get(gpu) != at_s:
            self._set[gpu] = at_s
            heapq.heappush(self.heap, (at_s, gpu))

    def pop(self) -> tuple[float, Gpu]:
        """Takes the first entry out."""
        entry = heapq.heappop(self.heap)
        if self._set.get(entry[1]) == entry[0]:
            del self._set[entry[1]]
        return entry
