"""Room for a gang within one cell: policies count a machine's GPUs alone, and may leave them in several cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pycontrol.arbiter.lease import Lease
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import RoundPart
from pycontrol.model.auction import Award, Gang
from pycontrol.model.topology import Gpu

Kept = Sequence[tuple[Award, list[Lease]]]
"""Gangs whose leases end and that their apps are to keep."""


def wanted_cell(s: State, app_id: str) -> str:
    """The type of the cell within which the app's gangs must lie; empty for any place."""
    agent = s.agents.get(app_id)
    return agent.demand.within if agent is not None else ""


def making_way(
    s: State,
    part: RoundPart,
    fresh: Iterable[tuple[Award, Gang]],
    kept: Kept,
    lost: Collection[Gpu],
    closed: Callable[[str], Collection[str]],
) -> set[int]:
    """Which of the gangs that would stay move within their machine, as few GPUs as possible, so that each new gang with
    `within` has the room that it won. `lost`: GPUs whose leases end and that nobody keeps; `closed`: hosts by app."""
    moved: set[int] = set()
    free = set(lost)
    for award, gang in fresh:
        kind = wanted_cell(s, award.app_id)
        if not kind or len(gang) != 1:
            continue
        name, gpus = gang[0]
        if _room(s, part, kind, name, free) >= gpus:
            continue
        enough = [
            found for found in _by_cell(s, part, kind, name, kept, moved)
            if all(_may_move(s, kept[k], closed) for k in found)
            and _room(s, part, kind, name, free.union(*(_gpus(kept[k]) for k in found))) >= gpus
        ]  # fmt: skip
        if enough:
            fewest = min(enough, key=lambda found: sum(len(kept[k][1]) for k in found))
            moved.update(fewest)
            free.update(gpu for k in fewest for gpu in _gpus(kept[k]))
    return moved


def _room(s: State, part: RoundPart, kind: str, name: str, coming: Collection[Gpu]) -> int:
    return s.supply.room_within(kind, part.vc if part.private else None, coming).get(name, (0, 0))[0]


def _gpus(entry: tuple[Award, list[Lease]]) -> set[Gpu]:
    return {lease.gpu for lease in entry[1]}


def _by_cell(s: State, part: RoundPart, kind: str, name: str, kept: Kept, moved: set[int]) -> list[list[int]]:
    """Of each cell of a type in a machine, the gangs that touch it and lie in this machine alone."""
    found: dict[tuple[int, int], list[int]] = {}
    for k, (_, leases) in enumerate(kept):
        places = s.places((x.gpu for x in leases), part.private)
        if k in moved or len(places) != 1 or places[0][0] != name:
            continue
        for cell in {s.supply.cell_of(x.gpu, kind) for x in leases}:
            if cell is not None:
                found.setdefault(cell, []).append(k)
    return list(found.values())


def _may_move(s: State, entry: tuple[Award, list[Lease]], closed: Callable[[str], Collection[str]]) -> bool:
    """Whether a gang can start anywhere else on its machine: its cells are free then, and it asks for none itself."""
    award, leases = entry
    agent = s.agents.get(award.app_id)
    if agent is None or not s.groups.is_whole(leases):
        return False
    anywhere = not agent.demand.within or len(leases) == 1
    return anywhere and leases[0].gpu.host not in closed(award.app_id)
