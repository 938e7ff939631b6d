"""Packs gangs into bins: greedily if that suffices, else by an exact search."""

from __future__ import annotations

from collections.abc import Sequence

STEPS = 200_000
"""States that the exact search visits before it raises `Undecided`."""


class Undecided(Exception):
    """The exact search needed too many steps."""


def pack(frees: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """The bin of each worker (sizes descending), fullest bins first; None if they do not fit.

    The search is exact; it raises Undecided after STEPS states.
    """
    by_free: dict[int, list[int]] = {}
    for at, free in enumerate(frees):
        same = by_free.setdefault(free, [])
        if len(same) < len(sizes):  # more equal bins than workers cannot help
            same.append(at)
    bins = [at for free in sorted(by_free) for at in by_free[free]]
    left = [frees[at] for at in bins]
    if sum(left) < sum(sizes):
        return None
    greedy = _best_fit(list(left), sizes)
    if greedy is not None:
        return [bins[b] for b in greedy]
    if sizes[0] == sizes[-1]:
        return None
    failed: set[tuple[int, tuple[int, ...]]] = set()
    chosen: list[int] = []
    tried: list[list[int]] = []
    steps = 0
    while len(chosen) < len(sizes):
        worker = len(chosen)
        if len(tried) == worker:  # a new state
            state = (worker, tuple(sorted(left)))
            steps += 1
            if steps > STEPS:
                raise Undecided
            tried.append([] if state in failed else _options(left, sizes[worker]))
        if tried[worker]:
            at = tried[worker].pop(0)
            left[at] -= sizes[worker]
            chosen.append(at)
            continue
        failed.add((worker, tuple(sorted(left))))
        tried.pop()
        if not chosen:
            return None
        at = chosen.pop()
        left[at] += sizes[worker - 1]
    return [bins[at] for at in chosen]


def _options(left: list[int], gpus: int) -> list[int]:
    """One bin for each number of free GPUs with room, fullest first."""
    by_free = {free: at for at, free in enumerate(left) if free >= gpus}
    return [by_free[free] for free in sorted(by_free)]


def _best_fit(left: list[int], sizes: Sequence[int]) -> list[int] | None:
    chosen = []
    for gpus in sizes:
        fitting = [at for at, free in enumerate(left) if free >= gpus]
        if not fitting:
            return None
        best = min(fitting, key=left.__getitem__)
        left[best] -= gpus
        chosen.append(best)
    return chosen
