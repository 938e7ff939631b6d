"""A worker's rank in its gang, from the environment, and agreement among the workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class ClusterError(ValueError):
    """The environment contradicts itself, or a framework is missing."""


@dataclass(frozen=True)
class Rank:
    """A worker's rank among the gang's workers."""

    workers: int = 1
    index: int = 0
    """Rank from 0; the task `chief`, if any, comes first."""

    @property
    def chief(self) -> bool:
        """Whether it is the gang's chief: the task `chief`, else worker 0."""
        return self.index == 0

    @staticmethod
    def parse(tf_config: str) -> Rank:
        """The rank in TF_CONFIG; a single worker if it is empty."""
        if not tf_config.strip():
            return Rank()
        try:
            config = json.loads(tf_config)
            cluster: Mapping[str, Sequence[str]] = config["cluster"]
            task = config.get("task", {})
            workers = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
            kind, index = str(task.get("type", "worker")), int(task.get("index", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ClusterError(f"TF_CONFIG: {tf_config[:200]!r} has no cluster and task") from e
        after = len(cluster.get("chief", ())) if kind == "worker" else 0
        return Rank(max(1, workers), index + after)

    @staticmethod
    def of_ranks(env: Mapping[str, str]) -> Rank:
        """The rank in RANK and WORLD_SIZE, which the supervisor or torchrun sets; else in TF_CONFIG."""
        if not env.get("WORLD_SIZE"):
            return Rank.parse(env.get("TF_CONFIG", ""))
        try:
            rank, workers = int(env.get("RANK", "0")), int(env["WORLD_SIZE"])
        except ValueError as e:
            raise ClusterError(f"RANK={env.get('RANK')}, WORLD_SIZE={env['WORLD_SIZE']}: must be whole numbers") from e
        if not 0 <= rank < workers:
            raise ClusterError(f"RANK={rank}, WORLD_SIZE={workers}: the rank lies outside")
        return Rank(workers, rank)


class Agreement:
    """Agreement among the workers of a gang, here of one; every worker makes the same calls in the same order."""

    def __init__(self, place: Rank) -> None:
        self.place = place

    @property
    def replicas(self) -> int:
        """The number of replicas on all workers."""
        return self.place.workers

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over the workers, each of which gives as many values."""
        return [float(v) for v in values]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any worker."""
        return self.sum([float(flag)])[0] > 0

    def from_chief(self, values: Sequence[float]) -> list[float]:
        """The chief's values, on every worker."""
        return self.sum(values if self.place.chief else [0.0] * len(values))

    def barrier(self) -> None:
        """Wait until every worker has called it."""
        self.any(False)
