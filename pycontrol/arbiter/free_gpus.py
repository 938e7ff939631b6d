"""The free GPUs by host: those that can be leased now."""

from __future__ import annotations

from collections.abc import Iterator

from pycontrol.model.topology import Gpu


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
