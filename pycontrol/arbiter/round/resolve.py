"""What a plan changes: which gangs are renewed, revoked, lent, owned or granted, and which are refused and why.

`resolve` only decides; `commit` carries its changes out. It yields the changes that one state decides together, and is
asked for the next when these are carried out, so that each is decided on what is left: the cells say only when they are
asked which GPUs a gang gets, and whom it displaces.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.lease import Lease, gpus_in, grant_name
from pycontrol.arbiter.ledger.lease import part as part_of
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.state import Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.auction.placing import place_gang
from pycontrol.cells.machines import NO_CELL, Room
from pycontrol.model.auction import Award, Demand, Gang, Plan, gang_gpus, gangs_by_host
from pycontrol.model.cluster import Ask
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import Cause, EndReason, Pending, Reason
from pycontrol.model.topology import Gpu, Scope
from pycontrol.model.value import value


@dataclasses.dataclass(frozen=True)
class Work:
    """The round part to which a plan applies."""

    round_id: str
    part: RoundPart
    ending: Mapping[str, list[list[Lease]]]
    """App -> its gangs on offer."""
    borrowers: Sequence[str] = ()
    """Apps of the virtual cluster that borrow GPUs; only where its own machines are shared out."""
    moving: Mapping[str, list[list[Lease]]] = dataclasses.field(default_factory=dict)
    """App -> its borrowed gangs with leases that end."""
    closed: Callable[[str], Collection[str]] = lambda _: ()
    """App -> hosts where none of its new containers may start."""


# ---- the changes


@value
class Renew:
    """A gang keeps its GPUs."""

    award: Award
    leases: tuple[Lease, ...]
    gang: Gang
    end_s: float


@value
class Revoke:
    """Leases of one app end by a deadline."""

    app_id: str
    leases: tuple[Lease, ...]
    deadline_s: float
    cause: Cause
    unsaved_gpu_s: float = 0.0
    """What they trained since their gangs' newest checkpoints."""


@value
class Lend:
    """A guaranteed gang that lost its cells keeps its GPUs as borrowed ones (HiveD's lazy preemption)."""

    leases: tuple[Lease, ...]


@value
class Own:
    """A borrowed gang becomes guaranteed in place, if cells of own machines can be bound there."""

    leases: tuple[Lease, ...]
    gang: Gang


@value
class Refuse:
    """An app does not get a gang that it was awarded."""

    app_id: str
    note: str
    """For the receipt."""
    why: Reason | None = None
    """The app's reason to wait; None if the round's other reasons say it."""
    lacks: bool = True
    """Whether there was no place for the gang, rather than no need for it."""
    gang: Gang = ()
    """GPUs that stay free for the app nevertheless."""


@value
class Grant:
    """An app gets a new gang; without a place for it, `otherwise` holds."""

    award: Award
    gang: Gang
    grant_id: str
    otherwise: Refuse
    asks: tuple[Ask, ...] = ()
    """Of an app without an Agent: the asks that the containers serve."""
    parts: Gang = ()
    """The gang, with an entry for each part of it that must lie in one cell of the type `within`."""
    avoid: tuple[frozenset[str], ...] = ()
    """For each of `parts`, the hosts to which its machine must not be bound."""
    within: str = ""
    """The type of cell within which each part must lie; empty for any."""
    gpus: tuple[Gpu, ...] = ()
    """Once it is carried out."""


Change = Renew | Revoke | Lend | Own | Grant | Refuse


def left(offered: Mapping[str, int], done: Sequence[Change]) -> dict[str, int]:
    """What these changes leave of the GPUs on offer, by host or machine."""
    counts = Counter(dict(offered))
    for change in done:
        if isinstance(change, Renew | Own | Grant | Refuse):
            counts.subtract(dict(change.gang))
    return {name: n for name, n in counts.items() if n > 0}


# ---- the decision

Kept = Sequence[tuple[Award, list[Lease]]]
"""Gangs with leases that end and that the plan lets their apps keep."""
New = Sequence[tuple[Award, Gang]]
"""Gangs that the plan gives and their apps do not have."""


def resolve(s: Holdings, work: Work, plan: Plan, done: Sequence[Change], now_s: float) -> Iterator[list[Change]]:
    """The changes that turn the present leases into those of the plan.

    Renewals come first, so that no renewed GPU is granted to another app; then revocations, then grants. `done`: what
    was carried out so far, which the caller extends.
    """
    part = work.part
    present = {a: list(filter(None, (leases.in_force(s, gang) for gang in gangs))) for a, gangs in work.ending.items()}
    free = {g for gangs in present.values() for g in _gpus(gangs) if s.may_be_reserved(g)}
    kept, new = _matched(s, part, plan, present)
    within = _Within(s, present, now_s) if s.limits else None
    kept = kept if within is None else [x for x in kept if within.keeps(*x)]
    keeps = _ids(kept)
    lost = [(a, g) for a, gangs in present.items() for g in gangs if id(g) not in keeps and free.issuperset(gpus_in(g))]
    moving = making_way(s, part, new, kept, _gpus(g for _, g in lost), work.closed)
    moves = _ids(moving)
    staying = [x for x in kept if id(x[1]) not in moves]
    new, refused, spared = _within_cells(s, work, new, kept, lost, _gpus(g for _, g in moving))
    spared = spared if within is None else [x for x in spared if within.keeps(*x)]
    gone = (a.app_id for a in plan.awards if a.app_id not in s.durable.live)
    yield [
        *(Refuse(a, f"{a} ended during the round", lacks=False) for a in gone),
        *refused,
        *(_renewal(s, part, award, gang, now_s) for award, gang in [*staying, *spared]),
    ]
    new = [*new, *((award, _places(s, part, gang)) for award, gang in moving)]
    awarded = Counter[str]()
    for award, gang in new:
        if rooms := s.rooms(award.app_id, now_s):
            awarded.update(dict.fromkeys(rooms, gang_gpus(gang)))
    stays = _ids([*staying, *spared])
    for app_id, gangs in present.items():
        losing = [g for g in gangs if id(g) not in stays]
        whole = [g for g in losing if id(g) not in moves and free.issuperset(gpus_in(g))]
        lends = [g for g in whole if _may_lend(s, part, app_id, g, awarded, now_s)]
        yield _taken_back(s, work, app_id, losing, lends, free, now_s)
    for k, (award, gang) in enumerate(new):
        yield from _served(s, work, award, gang, grant_name(work.round_id, k), done, now_s)
    for app_id in work.borrowers:
        if app_id in s.agents and not any(a.app_id == app_id for a in plan.awards):
            yield from _owned(s, part, app_id, done)


def _matched(s: Holdings, part: RoundPart, plan: Plan, present: Mapping[str, list[list[Lease]]]) -> tuple[Kept, New]:
    """Splits a plan's gangs into those that their apps hold and keep, and new ones; these that need one cell first.

    Of gangs alike, of which the app keeps not all, those stay that would train most again.
    """
    n = Counter({award.app_id: len(award.gangs) for award in plan.awards})
    ordered = {a: x if n[a] == len(x) else sorted(x, key=s.unsaved_s, reverse=True) for a, x in present.items()}
    own = {a: [(_places(s, part, g), g) for g in gangs] for a, gangs in ordered.items()}
    kept: list[tuple[Award, list[Lease]]] = []
    new: list[tuple[Award, Gang]] = []
    for award in plan.awards:
        mine = own.get(award.app_id, [])
        for gang in award.gangs if award.app_id in s.durable.live else ():
            at = next((k for k, (places, _) in enumerate(mine) if places == gang), None)
            if at is None:
                new.append((award, gang))
            else:
                kept.append((award, mine.pop(at)[1]))
    return kept, sorted(new, key=lambda x: not wanted_cell(s, x[0].app_id))


class _Within:
    """Which gangs may be renewed: a limit may be lowered, or a budget be used up, while the policy decides."""

    def __init__(self, s: Holdings, present: Mapping[str, list[list[Lease]]], now_s: float) -> None:
        """`present`: the gangs on offer."""
        self._rooms: dict[str, dict[str, int]] = {}
        self._left = Counter[str]()
        for app_id in present:
            rooms = self._rooms[app_id] = s.limits.rooms(s.durable.apps[app_id], now_s)
            for name, room in rooms.items():
                self._left[name] = self._left.get(name, room) + len(_gpus(present[app_id]))

    def keeps(self, award: Award, gang: Sequence[Lease]) -> bool:
        """Whether the limits allow this gang besides those before it."""
        size, names = len(gpus_in(gang)), self._rooms.get(award.app_id, ())
        if any(self._left[name] < size for name in names):
            return False
        self._left.subtract(dict.fromkeys(names, size))
        return True


def _within_cells(
    s: Holdings, work: Work, new: New, kept: Kept, lost: Sequence[tuple[str, list[Lease]]], moving: Collection[Gpu]
) -> tuple[New, list[Refuse], Kept]:
    """The new gangs that cells of the type that their apps ask for can hold; policies count only machines' GPUs.

    A gang in segments whose machines have no such cells for them gets others that are left, of the same type.

    Besides them the refusals of the others, and the gangs of `lost` that need not lose their GPUs to these.
    """
    part, fits = work.part, list[tuple[Award, Gang]]()
    refused: list[Refuse] = []
    spared: list[tuple[Award, list[Lease]]] = []
    for k, (award, gang) in enumerate(new):
        app_id, kind = award.app_id, wanted_cell(s, award.app_id)
        keeps = _ids(spared) if kind else set()
        here = [x for x in lost if id(x[1]) not in keeps] if kind else []
        room = s.supply.room_within(kind, part.owner, {*moving, *_gpus(g for _, g in here)}) if kind else {}
        demand = s.agents[app_id].demand if kind else None
        if demand is None or all(demand.room(room.get(name, NO_CELL)[0]) >= n for name, n in gang):
            fits.append((award, gang))
            continue
        if demand.members:
            staying = (_places(s, part, mine) for _, mine in kept)
            taken = gangs_by_host([*staying, *(g for _, g in [*fits, *new[k + 1 :]])])
            able = _able(work, app_id, demand, gang, taken, room)
            if (instead := place_gang(demand.gang_gpus, demand.scope, able, part.topology, demand.members)) is not None:
                fits.append((award, instead))
                continue
        where = f"{kind} of {part.by_host(dict(gang))}"
        note = f"{app_id}: no {where} has room for its gang"
        refused.append(Refuse(app_id, note, Reason(Pending.NO_ROOM_WITHIN, where)))
        unused = dict(gang)
        for other, mine in here:
            places = _places(s, part, mine)
            if all(unused.get(name, 0) >= n for name, n in places):
                unused.update((name, unused[name] - n) for name, n in places)
                spared.append((Award(other, ()), mine))
    return fits, refused, spared


def _able(
    work: Work, app_id: str, demand: Demand, gang: Gang, taken: Mapping[str, int], room: Mapping[str, Room]
) -> dict[str, int]:
    """GPUs on offer, by machine, whose cells another gang like this one could use besides those that are taken."""
    part, closed, types = work.part, work.closed(app_id), {work.part.topology.type_of(name) for name, _ in gang}
    return {
        name: min(n - taken.get(name, 0), demand.room(room[name][0]))
        for name, n in part.free.items()
        if name in room
        and part.topology.type_of(name) in types
        and part.host_of.get(name, name) not in closed
        and demand.pinned in ("", part.pinned.get(name))
    }


def _renewal(s: Holdings, part: RoundPart, award: Award, gang: list[Lease], now_s: float) -> Renew:
    from_s = max(now_s, min(x.end_s for x in gang))
    return Renew(award, tuple(gang), _places(s, part, gang), end_s(s, award, from_s, gang[0].gpus[0].host))


def end_s(s: Holdings, award: Award, from_s: float, host: str) -> float:
    """When a lease that begins at `from_s` ends: at its usual end, or at `Award.until_s` if that is earlier."""
    usual_s = leases.end_s(s, from_s, host, award.app_id)
    return usual_s if award.until_s is None else min(usual_s, max(award.until_s, from_s + s.lead_s))


def _may_lend(
    s: Holdings, part: RoundPart, app_id: str, gang: list[Lease], awarded: Mapping[str, int], now_s: float
) -> bool:
    """Whether an app keeps a gang that it lost as borrowed: it is `lazy`, and its limits leave room for the winners.

    The winner's cells are bound elsewhere if possible; if not, the gang is evicted like any borrowed one.
    """
    agent = s.agents.get(app_id)
    lazy = agent is not None and agent.demand.lazy and part.owner is not None
    room = all(room >= awarded[name] for name, room in s.rooms(app_id, now_s).items())
    return lazy and room and s.durable.is_whole(gang)


def _taken_back(
    s: Holdings,
    work: Work,
    app_id: str,
    losing: Sequence[list[Lease]],
    lends: Sequence[list[Lease]],
    free: Collection[Gpu],
    now_s: float,
) -> list[Change]:
    """Lends an app's gangs or revokes their leases by the first end of them, but a lead from now at the earliest."""
    changes: list[Change] = [Lend(tuple(gang)) for gang in lends]
    gangs = [[(x, [g for g in x.gpus if g in free]) for x in gang] for gang in losing if gang not in lends]
    lost = [[x if len(gpus) == len(x.gpus) else part_of(x, gpus) for x, gpus in gang if gpus] for gang in gangs]
    if any(lost):
        why = s.over(app_id, now_s) or Cause(EndReason.LOST_ROUND, f"lost round {work.round_id}")
        changes.append(_revocation(s, app_id, lost, why, now_s))
    return changes


def _revocation(s: Holdings, app_id: str, gangs: Sequence[list[Lease]], why: Cause, now_s: float) -> Revoke:
    all_of = tuple(x for gang in gangs for x in gang)
    deadline_s = max(min(x.end_s for x in all_of), now_s + s.lead_s)
    return Revoke(app_id, all_of, deadline_s, why, sum(map(s.unsaved_gpu_s, gangs)))


def _served(
    s: Holdings, work: Work, award: Award, gang: Gang, grant_id: str, done: Sequence[Change], now_s: float
) -> Iterator[list[Change]]:
    """Grants a new gang, unless its app can use no more GPUs than it has, with those that it borrows.

    Then one that it borrows becomes guaranteed, if its cells can be bound where that runs; or its leases end, so that
    it moves; or the GPUs stay unused until they do, as the private cluster would run the app there and no other.
    """
    app_id, size = award.app_id, gang_gpus(gang)
    if work.part.guaranteed and s.borrowing(app_id) and _more_gpus(s, app_id, now_s) < size:
        for borrowed in borrowed_gangs(s, app_id):
            own = Own(tuple(borrowed), gang)
            if len(gpus_in(borrowed)) == size:
                yield [own]
            if done and done[-1] is own:
                return
        ending = [g for then in work.moving.get(app_id, ()) if (g := leases.in_force(s, then)) is not None]
        moves = min((g for g in ending if len(gpus_in(g)) == size), key=s.unsaved_s, default=None)
        if moves is None:
            yield [Refuse(app_id, f"{app_id} borrows: its cells are kept for it", lacks=False, gang=gang)]
            return
        why = Cause(EndReason.MOVED, f"the cells of {work.part.vc} are free for it")
        yield [_revocation(s, app_id, [moves], why, now_s)]
    yield [_grant(s, work, award, gang, grant_id, now_s)]


def _more_gpus(s: Holdings, app_id: str, now_s: float) -> int:
    """How many GPUs an app can use besides those that it has."""
    demand = s.agents[app_id].demand if app_id in s.agents else standin.demand(s, app_id, now_s)
    return min([demand.gpus - s.holding(app_id), *s.rooms(app_id, now_s).values()])


def _grant(s: Holdings, work: Work, award: Award, gang: Gang, grant_id: str, now_s: float) -> Grant | Refuse:
    app_id, part, within = award.app_id, work.part, wanted_cell(s, award.app_id)
    full = s.full(app_id, gang_gpus(gang), now_s)
    if full is not None:  # the cluster shrank, a limit was lowered, or an app was moved, while the policy decided
        return Refuse(app_id, f"{app_id}: {full.sentence}", full)
    unmanaged = app_id in s.agents.unmanaged_apps
    asks = tuple(standin.asks_for(s, app_id, gang)) if unmanaged else ()
    if unmanaged and not asks:
        return Refuse(app_id, f"{app_id}: none of its asks fits {dict(gang)}", lacks=False)
    parts = gang
    if within and (members := s.agents[app_id].demand.members):
        parts = tuple((name, members[0]) for name, n in gang for _ in range(n // members[0]))
    avoid = _avoid(s, work, app_id, parts)
    why = Reason(Pending.NO_ROOM_WITHIN, within) if within else None
    if avoid and not within:
        why = Reason(Pending.NOT_ALLOWED_THERE, ", ".join(sorted(frozenset().union(*avoid))))
    gone = Refuse(app_id, f"{app_id}: its gang {part.by_host(dict(gang))} is no longer there", why)
    return Grant(award, gang, grant_id, gone, asks, parts, avoid, within)


def _avoid(s: Holdings, work: Work, app_id: str, parts: Gang) -> tuple[frozenset[str], ...]:
    """For each part of a gang, the hosts to which its machine must not be bound; empty: any.

    These are the hosts closed to the app and, for a gang on several machines of one rack or with segments in racks, the
    hosts of other racks: the policy placed the gang by the racks of its machines.
    """
    if not work.part.host_of:
        return ()
    closed, agent = frozenset(work.closed(app_id)), s.agents.get(app_id)
    in_racks = agent is not None and (agent.demand.scope is Scope.RACK or min(agent.demand.members, default=0) < 0)
    if not in_racks or len(parts) < 2:
        return (closed,) * len(parts) if closed else ()
    racks = [work.part.topology.rack_of(name) for name, _ in parts]
    hosts = s.topology.machines
    off = {rack: closed.union(h for h in hosts if s.topology.rack_of(h) != rack) for rack in {*racks}}
    return tuple(off[rack] for rack in racks)


def _owned(s: Holdings, part: RoundPart, app_id: str, done: Sequence[Change]) -> Iterator[list[Change]]:
    """Makes an app's borrowed gangs guaranteed on what is left of the machines; some policies award it nothing."""
    for borrowed in borrowed_gangs(s, app_id):
        d, free, size = s.agents[app_id].demand, left(part.free, done), len(gpus_in(borrowed))
        members = d.members if size == d.gang_gpus else ()
        gang = place_gang(size, d.scope, free, part.topology, members)
        if gang is not None:
            yield [Own(tuple(borrowed), gang)]


# ---- small answers


def _places(s: Holdings, part: RoundPart, gang: Iterable[Lease]) -> Gang:
    return s.places(gpus_in(gang), part.guaranteed)


def _gpus(gangs: Iterable[Sequence[Lease]]) -> set[Gpu]:
    return {gpu for gang in gangs for gpu in gpus_in(gang)}


def _ids(kept: Kept) -> set[int]:
    """The identities of these gangs."""
    return {id(gang) for _, gang in kept}


def wanted_cell(s: Holdings, app_id: str) -> str:
    """The type of cell within which each of the app's gangs must lie; empty for none."""
    agent = s.agents.get(app_id)
    return agent.demand.within if agent is not None else ""


def making_way(
    s: Holdings, part: RoundPart, new: New, kept: Kept, lost: Collection[Gpu], closed: Callable[[str], Collection[str]]
) -> Kept:
    """The kept gangs that move within their machine, so that each new gang with `within` has room in one cell.

    For each new gang, the fewest GPUs move. `lost`: GPUs with leases that end and are not renewed. `closed`: app ->
    hosts where none of its new containers may start.
    """
    moved: set[int] = set()
    free = set(lost)
    for award, gang in new:
        kind = wanted_cell(s, award.app_id)
        if not kind or len(gang) != 1 or s.agents[award.app_id].demand.members:
            continue
        name, gpus = gang[0]
        if _room(s, part, kind, name, free) >= gpus:
            continue
        enough = [
            found
            for found in _by_cell(s, part, kind, name, kept, moved)
            if all(_may_move(s, kept[k], closed) for k in found)
            and _room(s, part, kind, name, free | _gpus(kept[k][1] for k in found)) >= gpus
        ]
        if enough:
            fewest = min(enough, key=lambda found: len(_gpus(kept[k][1] for k in found)))
            moved.update(fewest)
            free |= _gpus(kept[k][1] for k in fewest)
    return [kept[k] for k in sorted(moved)]


def _room(s: Holdings, part: RoundPart, kind: str, name: str, coming: Collection[Gpu]) -> int:
    return max(s.supply.room_within(kind, part.owner, coming).get(name, NO_CELL)[0], default=0)


def _by_cell(s: Holdings, part: RoundPart, kind: str, name: str, kept: Kept, moved: set[int]) -> list[list[int]]:
    """For each cell of a type in a machine: the indices of gangs that use it and lie on this machine only."""
    places = ((k, [at for at, _ in _places(s, part, gang)]) for k, (_, gang) in enumerate(kept))
    here = [k for k, at in places if k not in moved and at == [name]]
    cells = ((cell, k) for k in here for cell in {s.supply.cell_of(gpu, kind) for gpu in gpus_in(kept[k][1])})
    return list(grouped((cell, k) for cell, k in cells if cell is not None).values())


def _may_move(s: Holdings, entry: tuple[Award, list[Lease]], closed: Callable[[str], Collection[str]]) -> bool:
    """Whether a gang may restart on other GPUs of its machine: it is a whole group, and needs no cell itself."""
    award, gang = entry
    agent = s.agents.get(award.app_id)
    if agent is None or not s.durable.is_whole(gang):
        return False
    anywhere = not agent.demand.within or len(gpus_in(gang)) == 1
    return anywhere and gang[0].gpus[0].host not in closed(award.app_id)


def borrowed_gangs(s: Holdings, app_id: str) -> list[list[Lease]]:
    """An app's borrowed gangs that are each one complete group of cells, oldest first."""
    gangs = [g for g in s.gangs_of(app_id) if not any(x.guaranteed for x in g) and s.durable.is_whole(g)]
    return sorted(gangs, key=lambda g: min(x.granted_s for x in g))
