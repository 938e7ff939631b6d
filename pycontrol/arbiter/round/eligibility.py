"""Where an app's new containers may start: refusing machines, node labels, strict locality, requested cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pycontrol.arbiter.round import standin
from pycontrol.arbiter.state import Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.auction.placing import FreeIndex
from pycontrol.cells.machines import NO_CELL, Room
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Node
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Gpu, Scope, Topology


def exceeds_types(demand: Demand, gpus: Mapping[str, int], topology: Topology, typed: bool) -> Reason | None:
    """Why a gang that fits on these GPUs fits on no single type that it may have; None if it does, or fits nowhere.

    `typed`: the policy gives each gang GPUs of one type, unless its app mixes types.
    """
    types = types_for(demand, topology, typed)
    if not fits(demand, gpus, topology) or fits_one_type(demand, gpus, topology, typed):
        return None
    sizes = Counter[str]()
    for host, n in gpus.items():
        sizes[topology.type_of(host)] += n
    own = ", ".join(f"{t} has {sizes[t]}" for t in types)
    where = {Scope.MACHINE: " on one machine", Scope.RACK: " in one rack", Scope.CLUSTER: ""}[demand.scope]
    advice = "" if demand.gpu_type else "; isonomy.mix_types=true lets it have several types"
    return Reason(Pending.EXCEEDS_GPU_TYPE, f"{demand.gang_gpus} GPUs in one gang{where}, {own}{advice}")


def types_for(demand: Demand, topology: Topology, typed: bool) -> Sequence[str]:
    """The GPU types that a gang may have; ("",) if it may have any, also mixed."""
    if demand.gpu_type:
        return (demand.gpu_type,)
    return topology.types if typed and demand.gang_gpus > 1 and not demand.mixes else ("",)


def fits_one_type(demand: Demand, free: Mapping[str, int], topology: Topology, typed: bool) -> bool:
    """Whether one gang fits on the free GPUs of a type that it may have. `typed`: as in `exceeds_types`."""
    return any(fits(demand, free, topology, t) for t in types_for(demand, topology, typed))


def fits(demand: Demand, free: Mapping[str, int], topology: Topology, gpu_type: str = "") -> bool:
    """Whether one gang fits on the free GPUs of a type ("": any)."""
    return FreeIndex(free, topology).has_place(demand.gang_gpus, demand.scope, gpu_type, demand.members)


_Terms = tuple[bool, frozenset[standin.Terms]]
"""Whether an app's containers start together, and the terms of its asks."""
_Shape = tuple[int, Scope, str, bool, tuple[int, ...]]
"""A gang's GPUs, scope and type, whether it mixes types, and its members."""


def _allows(terms: _Terms | None, node: Node) -> bool:
    """Whether any of the containers may start on a node; all of them if they start together."""
    if terms is None:
        return True
    together, each = terms
    may = (standin.allows(on, node) for on in each)
    return all(may) if together else any(may)


KEPT_MAX = 1_000
"""The most answers of a kind that are kept: users choose shapes and terms."""


class Eligibility:
    """Where apps' new containers may start: what holds for all rounds until a host changes."""

    def __init__(self, s: Holdings) -> None:
        self.s = s
        self._known: tuple[int, int] | None = None
        """What the caches below are of: the changes of hosts, and of their usable GPUs."""
        self._mixed = False
        """Whether any node has a label."""
        self._closed: dict[_Terms | None, tuple[dict[str, str], dict[str, str]]] = {}
        """Terms -> hosts that are up where no container with them may start; these and those closed to all -> why."""
        self._never: dict[tuple[bool, _Shape], Reason | None] = {}
        """(typed, shape) -> why all usable GPUs could not hold such a gang; None if they could."""

    def _look(self) -> None:
        """Clears what depends on hosts, if any has changed."""
        known = self.s.cluster.hosts_changes, self.s.gpus.hosts_changes
        if known != self._known or max(len(self._closed), len(self._never)) > KEPT_MAX:
            self._known = known
            self._mixed = any(n.partition for n in self.s.cluster.nodes.values())
            self._closed.clear()
            self._never.clear()

    @property
    def alike(self) -> bool:
        """Whether all apps may start on the same hosts: no labels, localities or refusals make a difference."""
        self._look()
        return not (self._mixed or self.s.cluster.asks.local or len(self.s.cluster.refusals))

    def closed_hosts(self, app_id: str, size: int = 0) -> Mapping[str, str]:
        """Hosts that are up and where no new container of the app may start -> why. `size`: as in `terms`."""
        self._look()
        terms = self.terms(app_id, size)
        if terms not in self._closed:
            self._closed[terms] = self._closed_to(terms)
        limited, closed = self._closed[terms]
        refusals = self.s.cluster.refusals
        avoided = refusals.avoided(app_id) if len(refusals) else {}
        return {**self.s.cluster.closed, **avoided, **limited} if avoided else closed

    def _closed_to(self, terms: _Terms | None) -> tuple[dict[str, str], dict[str, str]]:
        nodes = self.s.cluster.nodes.values() if terms is not None else ()
        limited = {n.host: "" for n in nodes if not _allows(terms, n)}
        return limited, {**self.s.cluster.closed, **limited}

    def terms(self, app_id: str, size: int = 0) -> _Terms | None:
        """The terms of the app's asks, or its queue's partition before it asks; None: it may start anywhere.

        `size`: of an unmanaged app, the GPUs of the containers that it asks for in a round.
        """
        s, unmanaged = self.s, app_id in self.s.agents.unmanaged_apps
        if not self._mixed and not s.cluster.asks.local:
            return None
        asks = [a for a, _ in standin.open_asks(s, app_id)] if unmanaged else list(s.cluster.asks.of(app_id).values())
        if not self._mixed and not any(a.only_on for a in asks):
            return None
        if not asks:
            return False, frozenset({(s.cluster.default_partition(app_id), ())})
        together = unmanaged and standin.start_together(s, app_id)
        if not together:
            size = size or max(x.gpus for x in asks)
            asks = [a for a in asks if a.gpus == size]
        return together, frozenset(standin.terms(s, a) for a in asks)

    def never(self, demand: Demand, typed: bool) -> Reason | None:
        """Why a gang does not fit on all GPUs that may ever be leased; None if it does. `typed`: `exceeds_types`."""
        self._look()
        key = typed, shape_of(demand)
        if key not in self._never:
            self._never[key] = too_large(demand, self.s.gpus.usable, self.s.topology, typed)
        return self._never[key]

    def validate(self) -> Iterator[tuple[None, str]]:
        """Yields (None, what is wrong) where what is kept is not what the nodes say now."""
        self._look()
        if self._mixed != any(n.partition for n in self.s.cluster.nodes.values()):
            yield None, "whether nodes have labels is outdated"
        for terms, kept in self._closed.items():
            if kept != self._closed_to(terms):
                yield (
                    None,
                    f"hosts closed to {terms} are {sorted(self._closed_to(terms)[1])}, kept are {sorted(kept[1])}",
                )
        for (typed, shape), why in self._never.items():
            gpus, scope, gpu_type, mixes, members = shape
            demand = Demand(gpus, 1, scope=scope, gpu_type=gpu_type, mixes=mixes, members=members)
            if why != too_large(demand, self.s.gpus.usable, self.s.topology, typed):
                yield None, f"whether a gang of {gpus} GPUs ever fits is outdated"


def demand_of(s: Holdings, app_id: str, now_s: float, size: int = 0) -> Demand:
    """What the app could use, limited to what the cluster could hold.

    `size`: of an unmanaged app, count only containers of this many GPUs; 0: see `standin.demand`.
    """
    agent = s.agents.get(app_id)
    return within_cluster(s, app_id, agent.demand if agent is not None else standin.demand(s, app_id, now_s, size))


def within_cluster(s: Holdings, app_id: str, demand: Demand) -> Demand:
    """An app's demand, limited to what the cluster could hold: policies' running time grows with the gangs."""
    size, gpus = max(1, demand.gang_gpus), s.cluster.machines.gpus
    if demand.gangs <= gpus // size:
        return demand
    held = s.holding(app_id)  # containers of other sizes may leave room for a gang
    most = max(1, -(-held // size) + max(0, gpus - held) // size)
    return demand if demand.gangs <= most else replace(demand, gangs=most)


def shape_of(demand: Demand) -> _Shape:
    """The shape of an app's gangs."""
    return demand.gang_gpus, demand.scope, demand.gpu_type, demand.mixes, demand.members


def too_large(demand: Demand, gpus: Mapping[str, int], topology: Topology, typed: bool) -> Reason | None:
    """Why a gang does not fit on all these GPUs; None if it does. `typed`: as in `exceeds_types`."""
    if not fits(demand, gpus, topology):
        larger = demand.gang_gpus > sum(gpus.values())
        code = Pending.EXCEEDS_CLUSTER_SIZE if larger else Pending.NO_MACHINE_LARGE_ENOUGH
        parts = replace(demand, within="").parts  # the answer is kept for gangs of this shape
        return Reason(code, ": ".join(filter(None, [f"{demand.gang_gpus} GPUs in one gang", parts])))
    return exceeds_types(demand, gpus, topology, typed)


class Openings:
    """Where apps' new containers may start in one part of a round."""

    def __init__(self, rules: Eligibility, part: RoundPart, ending: Collection[Gpu] = (), typed: bool = False) -> None:
        """`ending`: GPUs with leases that end. `typed`: as in `exceeds_types`."""
        self.rules, self.s, self.part, self.ending, self.typed = rules, rules.s, part, ending, typed
        self._rooms: dict[tuple[str, bool], Mapping[str, Room]] = {}
        self._never: dict[_Shape, Reason | None] = {}
        """Shape of a gang -> why the part's machines, which are not hosts, could not hold it; None if they could."""
        self._why: dict[tuple[object, ...], Reason | None] = {}
        """(closed hosts by identity, shape, wishes for cells) -> why such apps cannot start on the offer."""
        self._offered: Mapping[str, int] = {}
        self._closed: list[Mapping[str, str]] = []
        """What the identities in `_why` are of, kept alive."""
        self._sizes: dict[str, int] = {}
        """Unmanaged app -> GPUs per container that the stand-in bids for in this round."""

    def demand(self, app_id: str, offered: Mapping[str, int], now_s: float) -> Demand:
        """What an app could use.

        An unmanaged app that asks for containers of several sizes takes part with one size per round: the largest
        that can start on the offer now, else the largest that ever can.
        """
        if app_id not in self.s.agents.unmanaged_apps:
            return demand_of(self.s, app_id, now_s)
        if app_id not in self._sizes:
            self._sizes[app_id] = self._size(app_id, offered, now_s)
        return demand_of(self.s, app_id, now_s, self._sizes[app_id])

    def _size(self, app_id: str, offered: Mapping[str, int], now_s: float) -> int:
        sizes, ever = standin.sizes(self.s, app_id), 0
        if len(sizes) < 2:
            return sum(sizes)
        for size in sizes:
            demand = demand_of(self.s, app_id, now_s, size)
            self._sizes[app_id] = size
            if self.why_out(app_id, demand, offered) is None:
                kept_out = self.kept_out(app_id)
                if self._fits(demand, {h: n for h, n in offered.items() if h not in kept_out}):
                    return size
                ever = ever or size
        return ever or sizes[0]

    def closed_hosts(self, app_id: str) -> Mapping[str, str]:
        """As `Eligibility.closed_hosts`, for the containers that the app asks for in this round."""
        return self.rules.closed_hosts(app_id, self._sizes.get(app_id, 0))

    def kept_out(self, app_id: str, ending: bool = True) -> Mapping[str, str]:
        """Hosts (or machines bound to them) where no new container of the app may start -> why.

        `ending`: whether GPUs with leases that end count as free in the requested cells.
        """
        found = self.closed_hosts(app_id)
        at = self.part.host_of
        if at and found:
            found = {name: found[at[name]] for name in sorted(self.part.bound) if at[name] in found}
        agent = self.s.agents.get(app_id)
        if agent is not None and (agent.demand.pinned or agent.demand.within):
            found = {**found, **{name: "" for name in self.part.usable if not self._admits(agent.demand, name, ending)}}
        return found

    def _admits(self, demand: Demand, name: str, ending: bool) -> bool:
        """Whether a machine is in the requested pinned cell and has a cell of the requested type with room."""
        part = self.part
        if demand.pinned and part.pinned.get(name) != demand.pinned:
            return False
        if not demand.within:
            return True
        return demand.room(self._within(demand.within, ending).get(name, NO_CELL)[0]) >= demand.piece_gpus

    def _within(self, kind: str, ending: bool = True) -> Mapping[str, Room]:
        if (kind, ending) not in self._rooms:
            coming = self.ending if ending else ()
            self._rooms[kind, ending] = self.s.supply.room_within(kind, self.part.owner, coming)
        return self._rooms[kind, ending]

    def _no_such_cells(self, demand: Demand) -> Reason | None:
        """Which of the requested cells this part does not have; None if it has them."""
        if demand.pinned and demand.pinned not in self.part.pinned.values():
            return Reason(Pending.NO_SUCH_CELLS, f"no pinned cell {demand.pinned}")
        if demand.within:
            size = max((size for _, size in self._within(demand.within).values()), default=0)
            if size < demand.piece_gpus:
                return Reason(Pending.NO_SUCH_CELLS, f"{demand.piece_gpus} GPUs within one {demand.within}")
        return None

    def why_out(self, app_id: str, demand: Demand, offered: Mapping[str, int]) -> Reason | None:
        """Why no gang of the app can start on the GPUs on offer, or ever on the cluster; None if one can.

        Otherwise a policy might hold GPUs for it, or give it GPUs that it may not use, and leave them idle.
        """
        if demand.gang_gpus <= 0:
            return None
        if offered is not self._offered:
            self._why, self._offered, self._closed = {}, offered, []
        closed = self.closed_hosts(app_id)
        key = id(closed), shape_of(demand), demand.pinned, demand.within
        if key not in self._why:
            self._closed.append(closed)
            missing = self._too_large(demand) or self._no_such_cells(demand)
            self._why[key] = missing or self._why_kept_out(demand, self.kept_out(app_id), offered)
        return self._why[key]

    def _too_large(self, demand: Demand) -> Reason | None:
        """Why its gang does not fit on all GPUs of the part that may ever be leased; None if it does."""
        if not self.part.host_of:
            return self.rules.never(demand, self.typed)
        shape = shape_of(demand)
        if shape not in self._never:
            self._never[shape] = too_large(demand, self.part.usable, self.part.topology, self.typed)
        return self._never[shape]

    def _why_kept_out(self, demand: Demand, kept_out: Mapping[str, str], offered: Mapping[str, int]) -> Reason | None:
        in_cells = bool(demand.within and demand.members)
        if not kept_out and not in_cells:
            return None
        rooms = self._within(demand.within) if in_cells else {}

        def usable(gpus: Mapping[str, int]) -> dict[str, int]:
            each = ((h, n) for h, n in gpus.items() if h not in kept_out)
            return {h: min(n, demand.room(rooms[h][0])) if in_cells else n for h, n in each}

        here = {h for h, n in offered.items() if n > 0 and h in kept_out}
        ever = self._fits(demand, usable(self.part.usable))
        now = not (here or in_cells) or self._fits(demand, usable(offered))
        if ever and (now or not self._fits(demand, offered)):
            return None
        hosts = {self.part.host_of.get(h, h): kept_out[h] for h in sorted(here or kept_out)}
        said = [f"{h}: {why}" for h, why in hosts.items() if why]
        if said:
            return Reason(Pending.REFUSED, "; ".join(said))
        if demand.within:
            return Reason(Pending.NO_ROOM_WITHIN, f"{demand.piece_gpus} GPUs within one {demand.within}")
        return Reason(Pending.NOT_ALLOWED_THERE, ", ".join(sorted(hosts)))

    def _fits(self, demand: Demand, free: Mapping[str, int]) -> bool:
        return fits_one_type(demand, free, self.part.topology, self.typed)
