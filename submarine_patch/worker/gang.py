"""The workers of one gang in TensorFlow: the distribution strategy, and agreement among the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from submarine_patch.worker.rank import Agreement, ClusterError, Rank


def tensorflow() -> Any:
    """The module; raises ClusterError if it cannot be imported."""
    try:
        import tensorflow as tf
    except ImportError as e:
        raise ClusterError(f"TensorFlow cannot be imported ({e}): pip install 'isonomy[worker]'") from e
    return tf


def growing_gpus(tf: Any) -> Sequence[Any]:
    """The GPUs of this process, whose memory is taken as needed."""
    gpus: Sequence[Any] = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return gpus


class Gang(Agreement):
    """TensorFlow's strategy for this worker, with agreement among all."""

    def __init__(self, place: Rank, threads: int) -> None:
        self._tf: Any = tensorflow()
        super().__init__(place)
        tf = self._tf
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        gpus = growing_gpus(tf)
        self.strategy: Any
        if place.workers > 1:
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        elif len(gpus) > 1:
            self.strategy = tf.distribute.MirroredStrategy()
        else:
            self.strategy = tf.distribute.get_strategy()

    @property
    def replicas(self) -> int:
        return int(self.strategy.num_replicas_in_sync)

    def sum(self, values: Sequence[float]) -> list[float]:
        own = super().sum(values)
        if self.place.workers == 1:
            return own
        local_replicas = self.replicas / self.place.workers
        total = self._all_sum(self._tf.constant(own, self._tf.float64))
        local = self.strategy.experimental_local_results(total)[0].numpy()
        return [float(v) / local_replicas for v in local]

    def settle(self) -> None:
        """Wait for the steps that are under way: none, as a step is done when `replicated` returns."""

    def mean(self, tensors: Any) -> Any:
        """Inside a replica: the mean of each tensor (or nest of tensors) over all replicas."""
        context = self._tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return tensors
        return context.all_reduce(self._tf.distribute.ReduceOp.MEAN, tensors)

    def replicated(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` as a graph that runs on every replica; its results are averaged over the replicas.

        Arguments are numpy arrays of this worker's examples along the first axis, split among its replicas.
        """
        tf, strategy = self._tf, self.strategy

        @tf.function
        def run(*parts: Any) -> Any:
            results = strategy.run(lambda *own: self.mean(step(*own)), args=parts)
            return tf.nest.map_structure(lambda r: strategy.experimental_local_results(r)[0], results)

        return lambda *arrays: run(*(self._split(a) for a in arrays))

    def _split(self, array: np.ndarray[Any, Any]) -> Any:
        """Split this worker's examples among its replicas."""
        local_replicas = self.replicas // self.place.workers
        if local_replicas == 1:
            return self._tf.constant(array)
        parts = np.array_split(array, local_replicas)
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: self._tf.constant(parts[context.replica_id_in_sync_group % local_replicas])
        )

    @cached_property
    def _all_sum(self) -> Any:
        tf, strategy = self._tf, self.strategy

        def in_replica(value: Any) -> Any:
            own = tf.identity(value)  # on this replica's device, where the reduction needs it
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float64)])
        def all_sum(values: Any) -> Any:
            return strategy.run(in_replica, args=(values,))

        return all_sum
