"""Makes room for a gang within one cell: policies count only GPUs per machine, which may lie in several cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pycontrol.arbiter.lease import Lease, gpus_in
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import RoundPart
from pycontrol.model.auction import Award, Gang
from pycontrol.model.topology import Gpu

Kept = Sequence[tuple[Award, list[Lease]]]
"""Gangs with leases that end and that the plan lets their apps keep."""


def wanted_cell(s: State, app_id: str) -> str:
    """The type of cell within which each of the app's gangs must lie; empty for none."""
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
    """Indices into `kept` of gangs that move within their machine, so that each new gang with `within` has room.

    For each new gang, the fewest GPUs move. `lost`: GPUs with leases that end and are not renewed. `closed`: app ->
    hosts where none of its new containers may start.
    """
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
            fewest = min(enough, key=lambda found: sum(len(_gpus(kept[k])) for k in found))
            moved.update(fewest)
            free.update(gpu for k in fewest for gpu in _gpus(kept[k]))
    return moved


def _room(s: State, part: RoundPart, kind: str, name: str, coming: Collection[Gpu]) -> int:
    return s.supply.room_within(kind, part.vc if part.private else None, coming).get(name, (0, 0))[0]


def _gpus(entry: tuple[Award, list[Lease]]) -> set[Gpu]:
    return set(gpus_in(entry[1]))


def _by_cell(s: State, part: RoundPart, kind: str, name: str, kept: Kept, moved: set[int]) -> list[list[int]]:
    """For each cell of a type in a machine: the indices of gangs that use it and lie on this machine only."""
    found: dict[tuple[int, int], list[int]] = {}
    for k, (_, leases) in enumerate(kept):
        places = s.places(gpus_in(leases), part.private)
        if k in moved or len(places) != 1 or places[0][0] != name:
            continue
        for cell in {s.supply.cell_of(gpu, kind) for gpu in gpus_in(leases)}:
            if cell is not None:
                found.setdefault(cell, []).append(k)
    return list(found.values())


def _may_move(s: State, entry: tuple[Award, list[Lease]], closed: Callable[[str], Collection[str]]) -> bool:
    """Whether a gang may restart on other GPUs of its machine: it is a whole group, and needs no cell itself."""
    award, leases = entry
    agent = s.agents.get(award.app_id)
    if agent is None or not s.durable.is_whole(leases):
        return False
    anywhere = not agent.demand.within or len(gpus_in(leases)) == 1
    return anywhere and leases[0].gpus[0].host not in closed(award.app_id)
