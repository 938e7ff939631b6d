"""Which GPUs of a machine a gang gets: those of one slot (an NVLink pair, say), where the topology file names slots."""

from __future__ import annotations

from collections.abc import Sequence

from pycontrol.model.topology import Gpu


def pick(free: Sequence[Gpu], coming: Sequence[tuple[float, Gpu]], n: int, slot_gpus: int) -> list[Gpu]:
    """`n` of a machine's GPUs, fewer if it has fewer: free ones, then those that come free first.

    `coming`: (when it comes free, GPU), ascending. A gang that waits for some of them may as well have others that come
    no later: with slots, those that make its slots the fewest.
    """
    if len(free) >= n:
        return choose(free, n, slot_gpus)
    needed = coming[: n - len(free)]
    if slot_gpus < 2 or len(free) + len(needed) < n:
        return [*free, *(gpu for _, gpu in needed)]
    last_s = needed[-1][0]
    return choose([*free, *(gpu for at_s, gpu in coming if at_s <= last_s)], n, slot_gpus)


def choose(free: Sequence[Gpu], n: int, slot_gpus: int) -> list[Gpu]:
    """`n` of a machine's free GPUs, at least as many, in as few slots of `slot_gpus` consecutive indices as possible.

    The last slot is the fullest one that still has room, so that whole slots stay for others. Ties go to the lowest
    index; without slots these are the lowest indices.
    """
    ordered = sorted(free)
    if slot_gpus < 2:
        return ordered[:n]
    slots: dict[int, list[Gpu]] = {}
    for gpu in ordered:
        slots.setdefault(gpu.index // slot_gpus, []).append(gpu)
    found: list[Gpu] = []
    while len(found) < n:
        rest = n - len(found)
        number = min(slots, key=lambda k: (len(slots[k]) < rest, abs(len(slots[k]) - rest), k))
        found += slots.pop(number)[:rest]
    return sorted(found)
