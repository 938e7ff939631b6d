"""Which GPUs of a machine a gang gets: those of one slot (an NVLink pair, say), where the topology file names slots."""

from __future__ import annotations

from collections.abc import Sequence

from pycontrol.model.topology import Gpu


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
