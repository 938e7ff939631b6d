"""The examples of each global step, which depend neither on the number of workers nor on restarts."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Batches:
    """Batches of arrays of equal length, reshuffled each epoch; a worker gets its part of each batch.

    A batch is shortened until it divides evenly among the replicas. Raises ValueError if it is smaller than that.
    """

    def __init__(
        self, arrays: tuple[Array, ...], batch_size: int, seed: int, workers: int, worker: int, replicas: int
    ) -> None:
        self._arrays, self._seed = arrays, seed
        examples = len(arrays[0])
        if any(len(a) != examples for a in arrays):
            raise ValueError(f"arrays differ in length: {[len(a) for a in arrays]}")
        self.batch_size = min(batch_size, examples)
        if self.batch_size < replicas:
            raise ValueError(f"a batch of {self.batch_size} cannot be shared by {replicas} replicas")
        self.per_epoch = examples // self.batch_size
        each = self.batch_size // replicas * (replicas // workers)
        self._mine = slice(worker * each, (worker + 1) * each)
        self._epoch, self._order = -1, np.arange(examples)

    def __getitem__(self, step: int) -> tuple[Array, ...]:
        """This worker's examples of the batch that step `step` (from 0) trains on."""
        epoch, at = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._arrays[0]))
        chosen = self._order[at * self.batch_size : (at + 1) * self.batch_size][self._mine]
        return tuple(a[chosen] for a in self._arrays)
