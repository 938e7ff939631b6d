"""Turns a policy's plan into leases: renewals in place, revocations with a deadline, grants of exact GPUs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.facts import LeaseBorrowed, LeaseGranted, LeaseOwned
from pycontrol.arbiter.ledger.lease import REVOKING, Lease, gpus_in, grant_name, part
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.parts import borrowed_gangs
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply.port import RoundPart
from pycontrol.arbiter.views.gpus import pick
from pycontrol.auction.placing import place_gang
from pycontrol.model.auction import Award, Gang, Plan, gang_gpus, gang_of
from pycontrol.model.events import HeldGrant, SendGrant
from pycontrol.model.reasons import Cause, EndReason, Pending, Reason
from pycontrol.model.receipt import Granted, Outcome, Revoked
from pycontrol.model.topology import Gpu, Scope


@dataclasses.dataclass(frozen=True)
class Work:
    """The round part to which a plan applies."""

    round_id: str
    part: RoundPart
    ending: Mapping[str, list[list[Lease]]]
    """App -> its gangs on offer."""
    borrowers: Sequence[str] = ()
    """Apps of the virtual cluster that borrow GPUs; only in a private part."""
    moving: Mapping[str, list[list[Lease]]] = dataclasses.field(default_factory=dict)
    """App -> its borrowed gangs with leases that end."""
    closed: Callable[[str], Collection[str]] = lambda _: ()
    """App -> hosts where none of its new containers may start."""


def commit(s: State, work: Work, plan: Plan, now_s: float) -> tuple[Outcome, str, Mapping[str, Reason]]:
    """Applies a plan to the present state.

    Returns the outcome, a note for the receipt, and by app why a gang that it was awarded found no place.
    """
    return _Commit(s, work, now_s).run(plan)


class _Commit:
    def __init__(self, s: State, work: Work, now_s: float) -> None:
        self.s, self.work, self.now_s = s, work, now_s
        self.round_id, self.part = work.round_id, work.part
        self.ending = {
            a: [now for gang in gangs if (now := leases.in_force(s, gang)) is not None]
            for a, gangs in work.ending.items()
        }
        self.coming: dict[str, set[Gpu]] = {}
        """Host -> leased GPUs that can be reserved: their leases end in this round or are being revoked."""
        held = (gpu for gangs in self.ending.values() for gang in gangs for gpu in gpus_in(gang))
        for gpu in (*held, *s.gpus.revoking):
            if gpu not in s.durable.reservations and s.usable(gpu):
                self.coming.setdefault(gpu.host, set()).add(gpu)
        self.left = dict(self.part.free or {})
        """GPUs of the part that are not granted yet, by host or by machine; unused in a whole-cluster part."""
        self.ends: list[tuple[float, list[Gpu]]] = []
        """The new ends of gangs that are renewed."""
        self.granted: list[Granted] = []
        self.revoked: list[Revoked] = []
        self.owned: list[Gpu] = []
        """GPUs that change from borrowed to guaranteed."""
        self.lent: list[Gpu] = []
        """GPUs that change from guaranteed to borrowed."""
        self.moved: set[Gpu] = set()
        """GPUs of gangs that move to other GPUs of the same machine."""
        self.awarded = Counter[str]()
        """Queue -> GPUs of its apps' new gangs."""
        self.dropped: list[str] = []
        self.refused: set[str] = set()
        """Apps that were awarded a gang for which there is no place."""
        self.why_refused: dict[str, Reason] = {}
        """Why, for those of them that GPUs enough could not serve: they need one cell or may not start there."""

    def run(self, plan: Plan) -> tuple[Outcome, str, Mapping[str, Reason]]:
        """Renews first, so that no renewed GPU is granted to another app; then revokes; then grants."""
        fresh, kept = self._matched(plan)
        fresh.sort(key=lambda new: not wanted_cell(self.s, new[0].app_id))
        moved = self._move_over(fresh, kept)
        for k, (award, held) in enumerate(kept):
            if k not in moved:
                self._renew(award, held)
        fresh = [new for new in fresh if self._lies_within(new[0].app_id, new[1])]
        fresh += [(kept[k][0], self._places(kept[k][1])) for k in sorted(moved)]
        leases.extend(self.s, self.ends)
        for award, gang in fresh:
            self.awarded[self._queue(award.app_id)] += gang_gpus(gang)
        self.revoked = self._revoke()
        for k, (award, gang) in enumerate(fresh):
            if not (self.part.private and self._own(award.app_id, gang)):
                self._grant(award, gang, k)
        if self.part.private:
            self._own_rest(plan)
        note = "; ".join([*filter(None, [plan.note]), *self.dropped])
        return self._outcome(plan, self._unused()), note, self.why_refused

    def _matched(self, plan: Plan) -> tuple[list[tuple[Award, Gang]], list[tuple[Award, list[Lease]]]]:
        """Splits a plan's gangs into new ones and those that their apps hold and keep."""
        s = self.s
        fresh: list[tuple[Award, Gang]] = []
        kept: list[tuple[Award, list[Lease]]] = []
        own: dict[str, list[tuple[Gang, list[Lease]]]] = {}
        for award in plan.awards:
            app = s.durable.apps.get(award.app_id)
            if app is None or app.finished_s is not None:
                self.dropped.append(f"{award.app_id} ended during the round")
                continue
            if award.app_id not in own:
                own[award.app_id] = [(self._places(g), g) for g in self.ending.get(award.app_id, ())]
            mine = own[award.app_id]
            for gang in award.gangs:
                at = next((k for k, (places, _) in enumerate(mine) if places == gang), None)
                if at is None:
                    fresh.append((award, gang))
                else:
                    kept.append((award, mine.pop(at)[1]))
        return fresh, kept

    def _queue(self, app_id: str) -> str:
        return self.s.durable.apps[app_id].queue

    def _places(self, gang: list[Lease]) -> Gang:
        return self.s.places(gpus_in(gang), self.part.private)

    def _move_over(self, fresh: Sequence[tuple[Award, Gang]], kept: Sequence[tuple[Award, list[Lease]]]) -> set[int]:
        """Indices into `kept` of gangs that move within their machine to make room for a gang that needs one cell."""
        if self.part.whole or not any(wanted_cell(self.s, award.app_id) for award, _ in fresh):
            return set()
        stay = {gpu for _, gang in kept for gpu in gpus_in(gang)}
        lost = self._lost_gpus() - stay
        moved = making_way(self.s, self.part, fresh, kept, lost, self.work.closed)
        self.moved = {gpu for k in moved for gpu in gpus_in(kept[k][1])}
        return moved

    def _lies_within(self, app_id: str, gang: Gang) -> bool:
        """Whether one cell of the type that the app asks for can hold its gang; policies count only machines' GPUs.

        If not, the gangs that would have lost their GPUs to it are renewed.
        """
        s, kind = self.s, wanted_cell(self.s, app_id)
        if self.part.whole or not kind:
            return True
        lost = self._lost_gpus()
        room = s.supply.room_within(kind, self.part.vc if self.part.private else None, lost)
        if all(room.get(name, (0, 0))[0] >= n for name, n in gang):
            return True
        self.refused.add(app_id)
        where = f"{kind} of {self.part.by_host(dict(gang))}"
        self.why_refused[app_id] = Reason(Pending.NO_ROOM_WITHIN, where)
        self.dropped.append(f"{app_id}: no {where} has room for its gang")
        left = dict(gang)
        for other, gangs in self.ending.items():
            for lost_gang in filter(self._is_lost, gangs):
                places = self._places(lost_gang)
                if lost_gang[0].gpus[0] not in self.moved and all(left.get(name, 0) >= n for name, n in places):
                    left.update((name, left[name] - n) for name, n in places)
                    self._renew(Award(other, ()), lost_gang)
        return False

    def _is_lost(self, gang: list[Lease]) -> bool:
        """Whether no GPU of an ending gang was renewed or granted to another app."""
        return all(gpu in self.coming.get(gpu.host, ()) for gpu in gpus_in(gang))

    def _lost_gpus(self) -> set[Gpu]:
        return {gpu for gangs in self.ending.values() for g in gangs if self._is_lost(g) for gpu in gpus_in(g)}

    def _own(self, app_id: str, gang: Gang) -> bool:
        """Serves a new gang of an app that can use no more GPUs with one that it borrows; returns whether it did.

        If cells of its virtual cluster can be bound where a borrowed gang runs, that gang becomes guaranteed. If a
        borrowed gang's leases end, it is revoked and the new gang is granted (False). Else the GPUs stay unused until
        such a lease ends, as the private cluster would run the app there and no other.
        """
        s, size = self.s, gang_gpus(gang)
        demand = s.agents[app_id].demand if app_id in s.agents else standin.demand(s, app_id, self.now_s)
        more = min(demand.gpus - s.holding(app_id), s.queue_room(self._queue(app_id)))
        if more >= size or not s.borrowing(app_id):
            return False
        for borrowed in borrowed_gangs(s, app_id):
            if len(gpus_in(borrowed)) == size and self._make_own(borrowed, gang):
                self._used(gang)
                return True
        for gang_then in self.work.moving.get(app_id, ()):
            moving = leases.in_force(s, gang_then)
            if moving is not None and len(gpus_in(moving)) == size:
                deadline_s = max(min(x.end_s for x in moving), self.now_s + s.lead_s)
                self.revoked += [Revoked(gpu, app_id, deadline_s) for gpu in gpus_in(moving)]
                why = Cause(EndReason.MOVED, f"the cells of {self.part.vc} are free for it")
                leases.revoke(s, moving, self.now_s, deadline_s, why)
                return False
        self._used(gang)
        self.dropped.append(f"{app_id} borrows: its cells are kept for it")
        return True

    def _make_own(self, borrowed: list[Lease], gang: Gang) -> bool:
        s, grant_id = self.s, borrowed[0].grant_id
        if not s.supply.own(grant_id, self.part.vc, gang):
            return False
        gpus = gpus_in(borrowed)
        s.record(LeaseOwned(tuple(gpus), grant_id))
        self.owned += gpus
        return True

    def _own_rest(self, plan: Plan) -> None:
        """Uses what is left of the machines to make borrowed gangs guaranteed; some policies award them nothing."""
        s = self.s
        topology = self.part.topology
        assert topology is not None
        awarded = {a.app_id for a in plan.awards}
        for app_id in self.work.borrowers:
            agent = s.agents.get(app_id)
            if app_id in awarded or agent is None:
                continue
            for borrowed in borrowed_gangs(s, app_id):
                free = {name: n for name, n in self.left.items() if n > 0}
                gang = place_gang(len(gpus_in(borrowed)), agent.demand.scope, free, topology)
                if gang is not None and self._make_own(borrowed, gang):
                    self._used(gang)

    def _end_s(self, award: Award, from_s: float, host: str) -> float:
        """When a lease that begins at `from_s` ends: at its usual end, or at `Award.until_s` if that is earlier."""
        end_s = leases.end_s(self.s, from_s, host, award.app_id)
        return end_s if award.until_s is None else min(end_s, max(award.until_s, from_s + self.s.lead_s))

    def _renew(self, award: Award, gang: list[Lease]) -> None:
        s, app_id = self.s, award.app_id
        gpus = gpus_in(gang)
        end_s = self._end_s(award, max(self.now_s, min(x.end_s for x in gang)), gpus[0].host)
        self.ends.append((end_s, gpus))
        for gpu in gpus:
            self.coming.get(gpu.host, set()).discard(gpu)
        self._used(self._places(gang))
        by_grant: dict[str, list[Gpu]] = {}
        for lease in gang:
            by_grant.setdefault(lease.grant_id, []).extend(lease.gpus)
        for grant_id, gpus in by_grant.items():
            grant = HeldGrant(grant_id, tuple(gpus), end_s)
            s.emit(SendGrant(app_id, self.round_id, grant, renewal=True, leftover=award.leftover))

    def _revoke(self) -> list[Revoked]:
        """Revokes every ending lease that was not renewed, by its end, but a lead from now at the earliest."""
        s, revoked = self.s, list[Revoked]()
        for app_id, gangs in self.ending.items():
            gangs = [gang for gang in gangs if gang[0].gpus[0] in self.moved or not self._lend(app_id, gang)]
            left = [(x, [g for g in x.gpus if g in self.coming.get(g.host, ())]) for gang in gangs for x in gang]
            lost = [x if len(gpus) == len(x.gpus) else part(x, gpus) for x, gpus in left if gpus]
            if not lost:
                continue
            deadline_s = max(min(x.end_s for x in lost), self.now_s + s.lead_s)
            revoked += [Revoked(gpu, app_id, deadline_s) for gpu in gpus_in(lost)]
            why = Cause(EndReason.LOST_ROUND, f"lost round {self.round_id}")
            leases.revoke(s, lost, self.now_s, deadline_s, why)
            for gpu in gpus_in(lost):  # a GPU that no container used is free already
                if gpu not in s.durable.leases:
                    self.coming[gpu.host].discard(gpu)
        return revoked

    def _lend(self, app_id: str, gang: list[Lease]) -> bool:
        """Lets an app with `lazy` keep a gang that it lost, as borrowed (HiveD's lazy preemption); returns whether.

        The winner's cells are bound elsewhere if possible; if not, the gang is evicted like any borrowed one.
        """
        s, agent = self.s, self.s.agents.get(app_id)
        if not self.part.private or not self._is_lost(gang) or agent is None or not agent.demand.lazy:
            return False
        grant_id, queue = gang[0].grant_id, self._queue(app_id)
        if s.queue_room(queue) < self.awarded[queue]:
            return False  # the winners take its place below their queue's limit
        if not s.durable.is_whole(gang) or not s.supply.downgrade(grant_id):
            return False
        gpus = gpus_in(gang)
        s.record(LeaseBorrowed(tuple(gpus), grant_id))
        self.lent += gpus
        return True

    def _grant(self, award: Award, gang: Gang, k: int) -> None:
        s, app_id, grant_id = self.s, award.app_id, grant_name(self.round_id, k)
        queue = self._queue(app_id)
        if s.queue_room(queue) < gang_gpus(gang):  # the cluster shrank, or an app was moved, while the policy decided
            self.refused.add(app_id)
            self.why_refused[app_id] = Reason(Pending.QUEUE_LIMIT, queue)
            self.dropped.append(f"{app_id}: {queue} is at its limit")
            return
        asks = standin.asks_for(s, app_id, gang) if app_id in s.agents.unmanaged_apps else []
        if app_id in s.agents.unmanaged_apps and not asks:
            self.dropped.append(f"{app_id}: none of its asks fits {dict(gang)}")
            return
        gpus = self._pick(gang) if self.part.whole else self._pick_cells(app_id, gang, grant_id)
        if gpus is None:
            self.refused.add(app_id)
            self.dropped.append(f"{app_id}: its gang {self.part.by_host(dict(gang))} is no longer there")
            return
        if asks and not standin.assign(s, app_id, gpus, asks):
            s.supply.release(grant_id)
            self.dropped.append(f"{app_id}: none of its asks allows {dict(gang)}")
            return
        self._used(gang)
        for gpu in gpus:
            self.coming.get(gpu.host, set()).discard(gpu)
        available_s = max(self._availability(g)[0] for g in gpus)
        from_s = max(available_s, self.now_s)
        end_s = self._end_s(award, from_s, gpus[0].host)
        after = tuple(gpu for gpu in gpus if gpu in s.durable.leases)
        s.record(LeaseGranted(tuple(gpus), app_id, grant_id, from_s, end_s, "", after, self.part.guaranteed))
        self.granted += [Granted(gpu, app_id) for gpu in gpus]
        grant = HeldGrant(grant_id, tuple(sorted(gpus)), end_s, available_s)
        s.emit(SendGrant(app_id, self.round_id, grant, leftover=award.leftover))

    def _used(self, gang: Gang) -> None:
        for name, n in gang:
            self.left[name] = self.left.get(name, 0) - n

    def _pick(self, gang: Gang) -> list[Gpu] | None:
        """Free GPUs on the gang's hosts, then those that come free first; None if there are too few."""
        gpus: list[Gpu] = []
        for host, n in gang:
            machine = self.s.topology.machines.get(host)
            coming = sorted(self._availability(g) for g in self.coming.get(host, ()))
            here = pick(self.s.gpus.free.on(host), coming, n, machine.slot_gpus if machine is not None else 0)
            if len(here) < n:
                return None
            gpus += here
        return gpus

    def _pick_cells(self, app_id: str, gang: Gang, grant_id: str) -> list[Gpu] | None:
        """The GPUs of the cells that the gang gets; None if no cells fit. Borrowers in the way lose whole gangs."""
        s, part = self.s, self.part
        within = wanted_cell(s, app_id)
        avoid = self._avoid(app_id, gang)
        placed = s.supply.place(grant_id, part.vc, part.guaranteed, gang, avoid, within)
        if placed is None:
            if avoid or within:
                code = Pending.NO_ROOM_WITHIN if within else Pending.NOT_ALLOWED_THERE
                self.why_refused[app_id] = Reason(code, within or ", ".join(sorted(avoid)))
            return None
        deadline_s = self.now_s + s.lead_s
        why = Cause(EndReason.GUARANTEE, f"the cells of {part.vc} need it")
        if placed.evicted:
            evicted = [x for x in s.durable.leases.each() if x.grant_id in placed.evicted and x.state != REVOKING]
            for gpu in gpus_in(evicted):
                lease = s.durable.leases.get(gpu)
                if lease is None or lease.grant_id not in placed.evicted or lease.state == REVOKING:
                    continue  # it was revoked with its gang
                lost = s.gang_at(gpu)
                self.revoked += [Revoked(gpu, x.app_id, deadline_s) for x in lost for gpu in x.gpus]
                leases.revoke(s, lost, self.now_s, deadline_s, why)
            promised = [x for x in s.durable.reservations.each() if x.grant_id in placed.evicted]
            leases.cancel_reservations(s, promised, self.now_s, why)
        return list(placed.gpus)

    def _avoid(self, app_id: str, gang: Gang) -> Collection[str]:
        """Hosts to which no machine of the gang may be bound.

        These are the hosts closed to the app and, for a gang on several machines of one rack, the hosts of all other
        racks: the policy placed the gang by the racks of its machines.
        """
        s, topology = self.s, self.part.topology
        if topology is None:
            return ()
        hosts = set(self.work.closed(app_id))
        agent = s.agents.get(app_id)
        if agent is not None and agent.demand.scope is Scope.RACK and len(gang) > 1:
            racks = {topology.rack_of(name) for name, _ in gang}
            hosts.update(host for host in s.topology.machines if s.topology.rack_of(host) not in racks)
        return hosts

    def _availability(self, gpu: Gpu) -> tuple[float, Gpu]:
        """The latest time at which the GPU becomes free (0: it is free), then the GPU."""
        present = self.s.durable.leases.get(gpu)
        if present is None:
            return 0.0, gpu
        return max(present.end_s, self.now_s), gpu

    def _unused(self) -> dict[str, int]:
        if self.part.free is not None:
            return self.part.by_host({name: n for name, n in self.left.items() if n > 0})
        counts = self.s.gpus.free.counts()
        for host, gpus in self.coming.items():
            if gpus:
                counts[host] = counts.get(host, 0) + len(gpus)
        return counts

    def _outcome(self, plan: Plan, unused: Mapping[str, int]) -> Outcome:
        by_host = self.part.by_host
        return Outcome(
            bids=tuple(dataclasses.replace(b, won=by_host(b.won)) for b in plan.bids),
            awards=tuple(
                Award(a.app_id, tuple(gang_of(by_host(dict(g))) for g in a.gangs), a.leftover) for a in plan.awards
            ),
            owned=tuple(self.owned),
            lent=tuple(self.lent),
            refused=tuple(sorted(self.refused)),
            leftover_gpus=by_host(plan.leftover_gpus),
            unused_gpus=unused,
            objective_log=plan.objective_log,
            proved_optimal=plan.proved_optimal,
            gap=plan.gap,
            solve_s=plan.solve_s,
            seed=plan.seed,
            why=dict(plan.why),
            renewed=tuple(gpu for _, gpus in self.ends for gpu in gpus),
            granted=tuple(self.granted),
            revoked=tuple(self.revoked),
            holds=tuple(dataclasses.replace(x, gang=gang_of(by_host(dict(x.gang)))) for x in plan.holds),
        )


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
    for k, (_, gang) in enumerate(kept):
        places = s.places(gpus_in(gang), part.private)
        if k in moved or len(places) != 1 or places[0][0] != name:
            continue
        for cell in {s.supply.cell_of(gpu, kind) for gpu in gpus_in(gang)}:
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
