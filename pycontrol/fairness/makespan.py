"""The earliest end of a phase: jobs packed on GPUs, optimally if the search can prove it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from pycontrol.model.value import value

NODES_MAX = 100_000
JOBS_MAX = 400
"""With more jobs only longest-first is tried, as the search recurses by job."""
TINY = 1e-12


@value
class Packed:
    """When the last job ends, in seconds, and whether that is proved to be the earliest possible."""

    end_s: float
    proved: bool = True


def longest_first(jobs_s: Sequence[float], machines: int) -> float:
    """Makespan of placing the longest job first, on the machine that is free first (at most 4/3 of the optimum)."""
    ends = [0.0] * min(machines, max(1, len(jobs_s)))
    for job in sorted(jobs_s, reverse=True):
        heapq.heapreplace(ends, ends[0] + job)
    return max(ends)


def least_end(jobs_s: Sequence[float], machines: int) -> float:
    """A lower bound on the makespan: by the mean load, the longest job, and jobs that must share a machine."""
    jobs = sorted(jobs_s, reverse=True)
    bounds = [sum(jobs) / machines]
    for k in range(math.ceil(len(jobs) / machines)):  # some machine has k + 1 of the k m + 1 longest jobs
        bounds.append(sum(jobs[k * machines - k : k * machines + 1]))
    least = max(bounds)
    return math.ceil(least - 1e-9) if all(float(j).is_integer() for j in jobs) else least


def pack(jobs_s: Sequence[float], machines: int, nodes_max: int = NODES_MAX) -> Packed:
    """Minimum makespan on identical machines: branch and bound, longest job first.

    After `nodes_max` steps the best packing found is returned, not proved.
    """
    jobs = sorted((j for j in jobs_s if j > 0), reverse=True)
    if not jobs:
        return Packed(0.0)
    search = _Search(jobs, machines, nodes_max)
    if search.best > search.least * (1 + TINY) and len(jobs) <= JOBS_MAX:
        search.place(0)
    proved = search.best <= search.least * (1 + TINY) or (len(jobs) <= JOBS_MAX and search.nodes > 0)
    return Packed(search.best, proved)


class _Search:
    def __init__(self, jobs: Sequence[float], machines: int, nodes: int) -> None:
        self.jobs, self.nodes = jobs, nodes
        self.ends = [0.0] * machines
        self.best = longest_first(jobs, machines)
        self.least = least_end(jobs, machines)
        self.left = [0.0] * (len(jobs) + 1)
        for i in range(len(jobs) - 1, -1, -1):
            self.left[i] = self.left[i + 1] + jobs[i]

    def place(self, i: int) -> None:
        """Tries job i on each machine that could still lead to an earlier end."""
        if i == len(self.jobs):
            self.best = min(self.best, max(self.ends))
            return
        job, ends = self.jobs[i], self.ends
        tried: set[float] = set()
        by_end = sorted(range(len(ends)), key=ends.__getitem__)
        last = ends[by_end[-1]]
        for m in by_end:
            below = self.best * (1 - TINY)
            if self.nodes <= 0 or self.best <= self.least * (1 + TINY):
                return
            # If all machines end below, there is room, as `least` is at least the mean load.
            if last >= below and sum(max(0.0, below - e) for e in ends) < self.left[i]:
                return
            if ends[m] in tried or ends[m] + job >= below:
                continue
            tried.add(ends[m])
            self.nodes -= 1
            before = ends[m]
            ends[m] = before + job
            self.place(i + 1)
            ends[m] = before
