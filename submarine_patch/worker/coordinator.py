"""Training with parameter servers: TensorFlow's ParameterServerStrategy behind the interface of a gang.

The coordinator runs the script; workers and servers only serve it. Steps are asynchronous: each is one batch on one
worker, and up to AHEAD of them for each worker are under way at a time. Their order, and so the result, differs from
run to run, but a checkpoint holds exactly the steps that it counts, as all of them are awaited first.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from submarine_patch.worker.gang import Gang, growing_gpus, tensorflow
from submarine_patch.worker.rank import Rank
from submarine_patch.worker.servers import CHIEF, SERVER, WORKER

AHEAD = 2
"""Steps of each worker that may be under way."""


def joined(tf_config: str) -> Coordinated | None:
    """The coordinator's gang, None without parameter servers; in a worker or a server it serves and does not return."""
    config = json.loads(tf_config) if tf_config.strip() else {}
    if not config.get("cluster", {}).get(SERVER):
        return None
    if config["task"]["type"] != CHIEF:
        serve()
    return Coordinated(len(config["cluster"][WORKER]))


def serve() -> NoReturn:
    """Serve the coordinator until this process is killed."""
    tf = tensorflow()
    growing_gpus(tf)
    told = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        told.cluster_spec(), job_name=told.task_type, task_index=told.task_id, protocol="grpc"
    )
    server.join()
    raise SystemExit("isonomy: the TensorFlow server ended")


class Coordinated(Gang):
    """The coordinator of `workers` workers. It agrees with nobody: it alone decides and keeps the checkpoints."""

    def __init__(self, workers: int) -> None:
        tf = self._tf = tensorflow()
        self.place = Rank()
        self.strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self._under_way: deque[Any] = deque()
        self._most = AHEAD * workers

    def replicated(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` as a graph that runs on some worker later; its results, a dict, can be read as soon as they are there.

        Arguments are numpy arrays, which travel from the coordinator to the worker.
        """
        tf, names = self._tf, list[str]()
        run = tf.function(lambda *parts: self.strategy.run(step, args=parts))

        def start(*arrays: Any) -> dict[str, Any]:
            while len(self._under_way) >= self._most:
                self._under_way.popleft().fetch()
            later = self._coordinator.schedule(run, args=tuple(tf.constant(a) for a in arrays))
            self._under_way.append(later)
            if not names:
                names.extend(later.fetch())
            return {name: _Later(later, name) for name in names}

        return start

    def settle(self) -> None:
        """Wait for the steps that are under way."""
        self._coordinator.join()
        self._under_way.clear()


class _Later:
    """A value of a step that may be under way."""

    def __init__(self, remote: Any, name: str) -> None:
        self._remote, self._name = remote, name

    def __float__(self) -> float:
        return float(self._remote.fetch()[self._name])
