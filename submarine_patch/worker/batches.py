"""The examples of each global step, which depend neither on the number of workers nor on restarts."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Batches:
    """Batches of arrays of equal length, reshuffled each epoch; a worker gets its part of each batch.

    A batch is shortened until it divides evenly among the replicas. Raises ValueError if it is smaller than that.
    `rest`: what does not fill a batch is the last batch of the epoch, if there is enough for every replica.
    """

    def __init__(
        self,
        arrays: tuple[Array, ...],
        batch_size: int,
        seed: int,
        workers: int,
        worker: int,
        replicas: int,
        rest: bool = False,
    ) -> None:
        self._arrays, self._seed = arrays, seed
        examples = len(arrays[0])
        if any(len(a) != examples for a in arrays):
            raise ValueError(f"arrays differ in length: {[len(a) for a in arrays]}")
        self.batch_size = min(batch_size, examples)
        if self.batch_size < replicas:
            raise ValueError(f"a batch of {self.batch_size} cannot be shared by {replicas} replicas")
        self.per_epoch = examples // self.batch_size + (rest and examples % self.batch_size >= replicas)
        self._worker, self._workers, self._replicas = worker, workers, replicas
        self._epoch, self._order = -1, np.arange(examples)

    def __getitem__(self, step: int) -> tuple[Array, ...]:
        """This worker's examples of the batch that step `step` (from 0) trains on."""
        epoch, at = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._arrays[0]))
        whole = self._order[at * self.batch_size : (at + 1) * self.batch_size]
        each = len(whole) // self._replicas * (self._replicas // self._workers)
        chosen = whole[self._worker * each : (self._worker + 1) * each]
        return tuple(a[chosen] for a in self._arrays)
