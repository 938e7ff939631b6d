"""The parts of a round with virtual clusters: first each one's own machines, then the GPUs that they may borrow.

Where idle GPUs are of several types, cooperative OEF computes fractional shares from the apps' measured speeds and the
virtual clusters' weights. They are rounded to whole GPUs by largest remainder; GPUs that are left go to any virtual
cluster that wants them.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.facts import LeaseBorrowed
from pycontrol.arbiter.ledger.lease import Lease, gpus_in
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart, Supply
from pycontrol.auction.placing import FreeIndex, pack
from pycontrol.model.auction import Demand
from pycontrol.model.grouping import grouped, summed
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.receipt import Revoked
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.shares.capped import within_demand
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.problem import ShareProblem

Ending = Mapping[str, Sequence[list[Lease]]]
"""App -> its gangs on offer."""


Share = Mapping[str, int]
"""Type -> GPUs that a virtual cluster may borrow; the key is ANY where the type does not matter."""
ANY = ""


class RoundParts:
    """The parts of one round, each computed when its turn comes."""

    def __init__(self, s: Holdings, clerk: Clerk, wanting: Iterable[str], now_s: float) -> None:
        self.s, self.clerk, self.now_s = s, clerk, now_s
        self.ending: Ending = {}
        self._wanting = grouped((s.durable.apps[app_id].vc, app_id) for app_id in wanting)
        self.borrowers = borrowers(s)
        """Virtual cluster -> its apps that borrow; they take part where its own machines are shared out."""
        self.busy = {*self._wanting, *self.borrowers}
        """The virtual clusters with apps that want GPUs, or that borrow and may own some."""
        nobody = frozenset[str]()
        self._own = deque((vc, nobody) for vc in sorted(s.supply.virtual_clusters()) or [""])
        """(virtual cluster, apps excluded from its part) in the order of their turns."""
        self._borrowing: deque[tuple[str, Share | None]] | None = None
        self.ended: list[tuple[Revoked, float]] = []
        """(a GPU of a gang that ended where no plan decides, its seconds unsaved) that no receipt has named yet."""

    def next(self) -> RoundPart | None:
        """The next part with GPUs to share out; None after the last."""
        s, supply = self.s, self.s.supply
        while self._own:
            vc, without = self._own.popleft()
            self._leave_bad_cells(vc)
            ending = self.ending_of(vc, True)
            if ending or vc in self._wanting or vc in self.borrowers:
                part = own_part(s, vc, ending, without)
                if part.free:
                    return part
        if self._borrowing is None:
            self._borrowing = self._shares(supply)
        while self._borrowing:
            vc, share = self._borrowing.popleft()
            if share is None:
                self.ending = {}  # each was renewed or revoked where its virtual cluster's share was given out
            free = dict(supply.idle()) if share is None else self._borrowed(supply, vc, share)
            if free:
                return RoundPart(vc, False, free, s.topology, s.gpus.usable)
        return None

    def _leave_bad_cells(self, vc: str) -> None:
        """Moves a virtual cluster out of cells with bad GPUs, if its apps wait and it can have better cells.

        Gangs that the bad GPUs spared would keep such a cell bound for as long as their leases are renewed. They move
        once all their leases end in the same round.
        """
        s = self.s
        if all(_only_borrows(s, app_id) for app_id in self._wanting.get(vc, ())):
            return
        gangs_ending = self.ending_of(vc, True).values()
        ending = grouped((x.grant_id, x) for gangs in gangs_ending for gang in gangs for x in gang)
        for groups in s.supply.groups_to_move(vc) if ending else ():
            gangs = [ending.get(group, []) for group in groups]
            if all(map(s.durable.is_whole, gangs)):
                end_s = max(x.end_s for gang in gangs for x in gang)
                why = Cause(EndReason.BAD_GPU, "its cell has a bad GPU, and its queue can have a better cell")
                self._end(gangs, end_s, why)

    def _end(self, gangs: Sequence[list[Lease]], end_s: float, why: Cause) -> None:
        for gang in gangs:
            lost_s, app_id = self.s.unsaved_s(gang), gang[0].app_id
            self.ended += [(Revoked(gpu, app_id, end_s, why.text), lost_s) for gpu in gpus_in(gang)]
        leases.revoke(self.s, self.clerk, (x for gang in gangs for x in gang), self.now_s, end_s, why)

    def again(self, part: RoundPart, without: frozenset[str] = frozenset()) -> None:
        """Repeats a part with own machines, before GPUs are borrowed, without some more apps."""
        if part.guaranteed:
            self._own.appendleft((part.vc, part.without | without))

    def borrowers_of(self, part: RoundPart) -> list[str]:
        """Borrowing apps that may get guaranteed GPUs in the part."""
        mine = self.borrowers.get(part.vc, []) if part.guaranteed else []
        return [a for a in mine if a in self.s.durable.live and a not in part.without]

    def ending_of(self, vc: str, guaranteed: bool) -> dict[str, list[list[Lease]]]:
        """App -> its gangs on offer, guaranteed or borrowed ones, in the parts of a virtual cluster."""
        s, result = self.s, {}
        for app_id, gangs in self.ending.items():
            if s.durable.apps[app_id].vc == vc:
                now = [g for gang in gangs if (g := leases.in_force(s, gang)) is not None]
                mine = [g for g in now if all(x.guaranteed for x in g) == guaranteed]
                if mine:
                    result[app_id] = mine
        return result

    def _shares(self, supply: Supply) -> deque[tuple[str, Share | None]]:
        """(virtual cluster, its share) in the order of their turns; then again, with None for the idle GPUs left over.

        Shares are max-min by number if all GPUs are of one type, else by type with OEF.
        Virtual clusters that must return the most GPUs come first, so that the others find these.
        """
        s = self.s
        if not supply.weights():
            return deque()  # nothing is lent
        lent = {vc: self.ending_of(vc, False) for vc in {s.durable.apps[a].vc for a in self.ending}}
        ends = (gpu for gangs in lent.values() for mine in gangs.values() for gang in mine for gpu in gpus_in(gang))
        room = summed([*supply.idle().items(), *((gpu.host, 1) for gpu in ends)])
        free = FreeIndex(room, s.topology)
        apps = {vc: [(a, self._unmet(a, free)) for a in mine] for vc, mine in self._wanting.items()}
        for vc, gangs in lent.items():
            apps.setdefault(vc, []).extend((a, _count({a: mine})) for a, mine in gangs.items())
        wanted = {vc: n for vc, mine in apps.items() if (n := sum(gpus for _, gpus in mine)) > 0}
        gpus = summed((s.topology.type_of(host), n) for host, n in room.items() if n > 0)
        shares: Mapping[str, Share]
        if len(gpus) < 2:
            most = sum(len(s.gpus.free.on(host)) for host in supply.idle()) + sum(map(_count, lent.values()))
            shares = {vc: {ANY: n} for vc, n in supply.shares(wanted, most).items()}
        else:
            shares = shares_by_type(s, apps, wanted, gpus, supply.weights())
        order = sorted(apps, key=lambda vc: (sum(shares.get(vc, {}).values()) - _count(lent.get(vc, {})), vc))
        rest: list[tuple[str, Share | None]] = [(vc, None) for vc in order if vc in self._wanting]
        return deque([*((vc, shares[vc]) for vc in order if vc in shares), *rest])

    def _unmet(self, app_id: str, free: FreeIndex) -> int:
        """GPUs that the app would borrow; 0 if no gang of it has room in `free`: then nobody need return any for it."""
        agent = self.s.agents.get(app_id)
        d = agent.demand if agent is not None else standin.demand(self.s, app_id, self.now_s)
        fits = not d.pinned and free.has_place(d.gang_gpus, d.scope, d.gpu_type, d.members)
        return d.gpus - self.s.holding(app_id) if fits else 0

    def _borrowed(self, supply: Supply, vc: str, share: Share) -> dict[str, int]:
        """GPUs by host that a virtual cluster may borrow: its ending borrowed gangs and idle GPUs, up to its share.

        Hosts with the most idle GPUs come first. Ending gangs beyond the share are revoked.
        """
        s, stay, left = self.s, dict[str, list[list[Lease]]](), dict(share)
        for app_id, gangs in self.ending_of(vc, False).items():
            for gang in gangs:
                kind = ANY if ANY in share else s.topology.type_of(gang[0].gpus[0].host)
                if left.get(kind, 0) > 0:
                    left[kind] -= len(gpus_in(gang))
                    stay.setdefault(app_id, []).append(gang)
                else:
                    why = Cause(EndReason.BORROWED_SHARE, f"{app_id} borrowed more than its share")
                    self._end([gang], max(min(x.end_s for x in gang), self.now_s + s.lead_s), why)
        free = dict[str, int]()
        for host, n in sorted(supply.idle().items(), key=lambda item: (-item[1], item[0])):
            kind = ANY if ANY in share else s.topology.type_of(host)
            if left.get(kind, 0) > 0:
                free[host] = min(n, left[kind])
                left[kind] -= free[host]
        for gangs in stay.values():
            for gpu in (gpu for gang in gangs for gpu in gpus_in(gang)):
                free[gpu.host] = free.get(gpu.host, 0) + 1
        return free


def own_part(s: Holdings, vc: str, ending: Ending, without: frozenset[str] = frozenset()) -> RoundPart:
    """A virtual cluster's own machines, with their free GPUs and those with leases that end; for "", all hosts."""
    if not vc:
        ends = (gpu for gangs in ending.values() for gang in gangs for gpu in gpus_in(gang))
        return RoundPart(vc, True, _on_offer(s, ends), s.topology, s.gpus.usable, without=without)
    supply, free, host_of, machines = s.supply, dict[str, int](), dict[str, str](), list[Machine]()
    found, known = supply.machines(vc), s.topology
    for m in found:
        at = known.machines.get(m.host)
        kind = at.gpu_type if at else "gpu"
        machines.append(Machine(m.name, known.rack_of(m.host), m.gpus, kind, at is not None and at.virtual))
        host_of[m.name] = m.host
        if m.free > 0:
            free[m.name] = m.free
    for gangs in ending.values():
        for gpu in (gpu for gang in gangs for gpu in gpus_in(gang)):
            name = supply.machine_of(gpu)
            free[name] = free.get(name, 0) + 1
    bound = frozenset(m.name for m in found if m.bound)
    pinned = {m.name: m.pinned for m in found if m.pinned}
    topology = Topology.of(machines)
    return RoundPart(vc, True, free, topology, topology.gpus_by_host, host_of, bound, without, pinned)


def _on_offer(s: Holdings, ending: Iterable[Gpu]) -> dict[str, int]:
    """GPUs by host that a round may lease: free ones, ending ones, and revoking ones without a reservation."""
    counts = s.gpus.free.counts()
    for gpu in (*ending, *s.gpus.revoking):
        if s.may_be_reserved(gpu):
            counts[gpu.host] = counts.get(gpu.host, 0) + 1
    return counts


def borrowers(s: Holdings) -> dict[str, list[str]]:
    """Virtual cluster -> its apps that borrow and may own its cells when these become free."""
    found: dict[str, list[str]] = {}
    for app_id in s.durable.held if not s.supply.whole else ():
        app = s.durable.live.get(app_id)
        if app is not None and app.vc and s.borrowing(app_id) and not _only_borrows(s, app_id):
            found.setdefault(app.vc, []).append(app_id)
    return found


def _only_borrows(s: Holdings, app_id: str) -> bool:
    """Whether an app is opportunistic: it uses none of its virtual cluster's own GPUs."""
    agent = s.agents.get(app_id)
    return agent is not None and agent.demand.opportunistic


def own_as_asked(s: Holdings, clerk: Clerk, app_id: str) -> None:
    """Makes an adopted app's guaranteed grants borrowed where its demand, known only now, does not allow them.

    These are all grants of an opportunistic app, and grants whose gang (or an unmanaged app's containers) would not fit
    on the machines of its virtual cells without being split: a private cluster would have no room for it.
    """
    supply = s.supply
    if not s.durable.apps[app_id].vc:
        return
    grants = grouped((x.grant_id, x) for x in s.durable.claims_of(app_id) if x.guaranteed)
    agent = s.agents.get(app_id)
    for grant_id, claims in grants.items():
        gpus = gpus_in(claims)
        if agent is not None:
            sizes = [len(gpus)] if agent.demand.scope is Scope.MACHINE else []
        else:
            containers = Counter(s.cluster.container_at.get(gpu, "") for gpu in gpus)
            sizes = [n for container_id, n in containers.items() if container_id]
        split = pack(sorted(sizes, reverse=True), Counter(map(supply.machine_of, gpus))) is None
        if split or _only_borrows(s, app_id):
            supply.downgrade(grant_id)
            clerk.record(LeaseBorrowed(tuple(gpus), grant_id))


def _count(ending: Ending) -> int:
    return sum(len(gpus_in(gang)) for gangs in ending.values() for gang in gangs)


def speed_vector(demands: Sequence[tuple[Demand, int]], types: Sequence[str]) -> list[float]:
    """The mean speed of a virtual cluster's apps on each type, weighted by the GPUs that each app wants.

    An app counts 1 on a type that was not measured, and 0 on a type that it does not take.
    """
    total = sum(gpus for _, gpus in demands) or 1
    return [sum(d.speed_on(t) * gpus for d, gpus in demands) / total for t in types]


def shares_by_type(
    s: Holdings,
    wanting: Mapping[str, Sequence[tuple[str, int]]],
    wanted: Mapping[str, int],
    gpus: Mapping[str, int],
    weights: Mapping[str, float],
) -> dict[str, dict[str, int]]:
    """Virtual cluster -> type -> whole GPUs that it may borrow.

    `wanting`: virtual cluster -> (app, further GPUs that it could use). `wanted`: virtual cluster -> GPUs of the
    offer `gpus` (by type) that it could use.
    """
    vcs, types = sorted(wanted), sorted(t for t, n in gpus.items() if n > 0)
    if not vcs or not types:
        return {vc: {} for vc in vcs}
    rows = []
    for vc in vcs:
        known = [(s.agents[a].demand, n) for a, n in wanting.get(vc, ()) if a in s.agents and n > 0]
        rows.append(speed_vector(known, types) if known else [1.0] * len(types))
    problem = ShareProblem.of(
        rows,
        [float(gpus[t]) for t in types],
        [weights.get(vc, 1.0) or 1.0 for vc in vcs],
        [float(wanted[vc]) for vc in vcs],
    )
    x = within_demand(OefCooperative(), problem)
    found: dict[str, dict[str, int]] = {vc: {} for vc in vcs}
    for j, gpu_type in enumerate(types):
        column = {vc: float(x[i, j]) for i, vc in enumerate(vcs)}
        for vc, n in _whole(column, gpus[gpu_type], {vc: wanted[vc] - sum(found[vc].values()) for vc in vcs}).items():
            if n:
                found[vc][gpu_type] = n
    return found


def _whole(share: Mapping[str, float], gpus: int, most: Mapping[str, int]) -> dict[str, int]:
    """Rounds shares by largest remainder, within `gpus` and at most `most` each."""
    whole = {vc: min(math.floor(n + 1e-6), most[vc]) for vc, n in share.items()}
    left = min(gpus, round(sum(share.values()))) - sum(whole.values())
    for vc in sorted(share, key=lambda vc: (whole[vc] - share[vc], vc)):
        if left > 0 and share[vc] - whole[vc] > 1e-6 and whole[vc] < most[vc]:
            whole[vc] += 1
            left -= 1
    return whole
