"""A priority queue of times at which GPUs must be looked at."""

from __future__ import annotations

import heapq

from pycontrol.model.topology import Gpu


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
