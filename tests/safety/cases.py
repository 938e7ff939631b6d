"""Random tenants: what they own, what they ask for, and the faults meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pycontrol.policies import registry
from pycontrol.policies.on_schedule import KEEPS

TENANTS = ("root.a", "root.b")
"""The queues that own cells; `root.x` owns none."""
STABLE = ("isonomy",)
"""Policies whose order of apps with Agents does not depend on what they borrowed, as long as no app outlasts its
declared work."""
POLICIES = (*STABLE, "tiresias", "themis", "gandiva", "srtf")
ALL_POLICIES = tuple(registry.POLICIES)
REPEATED = ("yarn_cs", "gandiva", "tiresias", "isonomy")
"""Policies whose private schedule is that of the private cluster at each moment, though it knows an app only from its
first round on its queue's own cells. With lots, and with shares, such an app may change what all later ones get; by the
work left it may since no app of a case reports progress."""
LENGTH_S = 300
FAILOVERS = ("crash", "takeover", "lost journal")
GPU = "gpu"


@dataclass(frozen=True)
class Ask:
    """One app: gangs of equal size from `start_s` until `end_s`, whatever it got; `together`: on one machine."""

    name: str
    queue: str
    gang_gpus: int
    gangs: int
    start_s: int
    end_s: int
    together: bool = False
    work_gpu_s: float | None = None
    """What it declares; None: more than it can ever use."""
    one_rack: bool = False
    gpu_type: str = ""
    priority: int = 0
    foreign: bool = False
    """It has no Agent: a stand-in bids for its containers, each of which is a gang."""
    more: tuple[tuple[int, int], ...] = ()
    """(GPUs, count) of its further containers; it has no Agent."""
    one_gang: bool = False
    """All its containers are one gang; it has no Agent."""
    opportunistic: bool = False
    lazy: bool = False
    within: str = ""
    pinned: str = ""

    @property
    def private(self) -> bool:
        """Whether its private cluster defines its guarantee."""
        return not (self.opportunistic or self.within or self.pinned)

    @property
    def parts(self) -> int:
        """Gangs, or containers where it has no Agent."""
        return self.gangs + sum(n for _, n in self.more)


@dataclass(frozen=True)
class Cell:
    """One cell of a machine (or of several): its owner, and whether it is pinned there."""

    kind: str
    gpus: int
    owner: str
    first: int
    """Its first GPU on its machine; for cells of several machines, 0."""
    hosts: tuple[str, ...]
    pinned: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of machine: its cell types from the GPU up, with the GPUs of each, and its hosts."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    hosts: tuple[str, ...]
    above: int = 1
    """Machines of one cell of the topmost type, where that is more than a machine."""
    gpu_type: str = "gpu"

    @property
    def gpus(self) -> int:
        """GPUs of a machine."""
        return self.sizes[-1]


@dataclass(frozen=True)
class Case:
    """A shared cluster and the events on it; times in seconds from the start."""

    seed: int
    policy: str
    kinds: tuple[Kind, ...]
    cells: tuple[Cell, ...]
    asks: tuple[Ask, ...]
    failovers: tuple[tuple[int, str], ...] = ()
    lost: tuple[int, str] | None = None
    """A machine that is lost permanently; there is a spare one of its kind."""
    bad: tuple[int, str, int] | None = None
    """A GPU that goes bad permanently: time, machine and index; there is a spare machine."""
    gained: tuple[int, Cell] | None = None
    """A cell of nobody's that a tenant owns from then on (`cells apply`)."""
    lent: tuple[int, Cell, str] | None = None
    """A cell that its owner lends to another tenant, from the beginning until then."""
    f: float = 0.0
    """Themis' f: of the waiting apps, the worst 1 - f get an offer."""
    private_schedule: bool = False
    """Whether the virtual clusters keep their private clusters' schedules."""
    vanishes_s: int | None = None
    """When the third tenant, `root.c`, leaves the cells file."""
    returns_s: int | None = None
    """When it is in the file again."""
    length_s: int = LENGTH_S
    min_lend_s: int = 0
    """How long borrowers keep GPUs before they are called back."""

    def machines(self) -> tuple[Machine, ...]:
        """The shared cluster: the machines of one rack cell are a rack."""
        return tuple(
            (host, f"r{i // kind.above}" if kind.above > 1 else "r", kind.gpus, kind.gpu_type)
            for kind in self.kinds
            for i, host in enumerate(kind.hosts)
        )

    def kind_of(self, host: str) -> Kind:
        """The kind of a machine."""
        return next(k for k in self.kinds if host in k.hosts)

    def specials(self, queue: str) -> bool:
        """Whether apps of a queue ask for places that a cluster of plain machines does not have."""
        return any(a.queue == queue and (a.within or a.pinned) for a in self.asks)

    def private(self, queue: str) -> tuple[Machine, ...]:
        """The machines that a queue's cells are, at the beginning."""
        lent = self.lent[1] if self.lent else None
        mine = [c for c in self.cells if (c.owner == queue and c != lent) or (c == lent and self.lent[2] == queue)]
        return as_machines(mine, self)

    def file(self, at_s: float = 0.0) -> dict[str, Any]:
        """The cells file in force at a time."""
        cells = list(self.cells)
        if self.gained and at_s >= self.gained[0]:
            cells.append(self.gained[1])
        types: dict[str, Any] = {}
        physical: list[Any] = []
        for kind in self.kinds:
            for k in range(1, len(kind.names)):
                count = kind.sizes[k] // kind.sizes[k - 1]
                types[kind.names[k]] = {"child": kind.names[k - 1], "count": count}
            types[kind.names[-1]]["node_level"] = True
            if kind.gpu_type != GPU:
                types[kind.names[1]]["child"] = kind.gpu_type
            if kind.above > 1:
                types[f"rack-{kind.names[-1]}"] = {"child": kind.names[-1], "count": kind.above}
            nodes = [self._tree(kind, len(kind.names) - 1, host, 0) for host in kind.hosts]
            if kind.above > 1:
                groups = [nodes[i : i + kind.above] for i in range(0, len(nodes), kind.above)]
                physical += [{"type": f"rack-{kind.names[-1]}", "children": group} for group in groups]
            else:
                physical += nodes
        owners: dict[str, Any] = {}
        gone_s = math.inf if self.vanishes_s is None else self.vanishes_s
        back_s = math.inf if self.returns_s is None else self.returns_s
        tenants = [*TENANTS] if gone_s <= at_s < back_s else [*TENANTS, "root.c"]
        for queue in tenants:
            counts: dict[tuple[str, str], int] = {}
            for c in cells:
                if c.owner == queue and not c.pinned:
                    key = c.kind, self.chain_of(c)
                    counts[key] = counts.get(key, 0) + 1
            owners[queue] = {
                "cells": [
                    {"type": self._type(t, chain), "chain": chain, "count": n} for (t, chain), n in counts.items()
                ],
                "pinned": [pin_of(c) for c in cells if c.owner == queue and c.pinned],
                "policy": self.policy,
                "private_schedule": self.private_schedule,
                "min_lend_s": self.min_lend_s,
            }
        return {"cell_types": types, "physical_cells": physical, "virtual_clusters": owners}

    def _type(self, name: str, chain: str) -> str:
        """GPUs are called by their type."""
        kind = next(k for k in self.kinds if k.names[-1] == chain or f"rack-{k.names[-1]}" == chain)
        return kind.gpu_type if name == kind.names[0] else name

    def type_of(self, cell: Cell) -> str:
        """The type of a cell as the file has it."""
        return self._type(cell.kind, self.chain_of(cell))

    def chain_of(self, cell: Cell) -> str:
        """The chain that a cell is in."""
        kind = next(k for k in self.kinds if cell.hosts[0] in k.hosts)
        return f"rack-{kind.names[-1]}" if kind.above > 1 else kind.names[-1]

    def _tree(self, kind: Kind, level: int, host: str, first: int) -> dict[str, Any]:
        node: dict[str, Any] = {"type": kind.names[level] if level else kind.gpu_type}
        if level == len(kind.names) - 1:
            node["node"] = host
        if level == 0:
            node["leaf_index"] = first
        else:
            size = kind.sizes[level - 1]
            count = kind.sizes[level] // size
            node["children"] = [self._tree(kind, level - 1, host, first + i * size) for i in range(count)]
        for c in self.cells:
            if c.pinned and c.hosts == (host,) and c.first == first and c.kind == kind.names[level]:
                node["pinned_id"] = pin_of(c)
        return node


def pin_of(cell: Cell) -> str:
    """The id of a pinned cell."""
    return f"{cell.kind}-{cell.hosts[0]}-{cell.first}"


Machine = tuple[str, str, int, str]
"""(host, rack, GPUs, type)."""


def as_machines(cells: Sequence[Cell], case: Case) -> tuple[Machine, ...]:
    """Machines that are these cells: one for each that is at most a machine, several for a larger one, in one rack."""
    racks = any(kind.above > 1 for kind in case.kinds)
    parts = [
        (c.gpus // len(c.hosts), f"r{k}" if racks else "r", case.kind_of(c.hosts[0]).gpu_type)
        for k, c in enumerate(cells)
        for _ in c.hosts
    ]
    parts.sort(key=lambda part: -part[0])
    return tuple((f"p{i:02d}", rack, gpus, kind) for i, (gpus, rack, kind) in enumerate(parts))


def draw(seed: int, strained: bool = False) -> Case:
    """The case of a seed; `strained`: always one with a bad GPU while apps without Agents borrow all GPUs."""
    rng = random.Random(seed)
    kinds = _kinds(rng)
    whole_only = rng.random() < 0.2
    cells = [c for kind in kinds for c in _cut(rng, kind, whole_only)]
    policy = rng.choice(POLICIES) if rng.random() < 0.4 else "isonomy"
    trouble = rng.choice(("", "", "failover", "failover", "lost", "gained", "lent", "vanishes"))
    spare = [c for c in cells if not c.owner and not c.pinned]
    more: dict[str, Any] = {}
    if trouble == "failover":
        times = sorted(rng.sample(range(20, LENGTH_S - 40), rng.randint(1, 2)))
        more["failovers"] = tuple((t, rng.choice(FAILOVERS)) for t in times)
    elif trouble == "lost":
        cells, lost = _with_a_spare(rng, cells, kinds)
        if lost:
            more["lost"] = rng.randint(20, LENGTH_S - 60), lost
    elif trouble == "gained" and spare:
        c = rng.choice(spare)
        tenant = rng.choice(TENANTS)
        more["gained"] = rng.randint(20, LENGTH_S - 60), Cell(c.kind, c.gpus, tenant, c.first, c.hosts)
    elif trouble == "lent":
        able = [c for c in cells if c.owner in TENANTS and not c.pinned]
        if able:
            c = rng.choice(able)
            more["lent"] = rng.randint(60, LENGTH_S - 60), c, next(t for t in TENANTS if t != c.owner)
    elif trouble == "vanishes":
        cells = [_to_c(c) if not c.owner and rng.random() < 0.5 else c for c in cells]
        more["vanishes_s"] = rng.randint(30, LENGTH_S - 60)
    plain = Case(seed, policy, kinds, tuple(cells), tuple(_asks(rng, cells, kinds)), **more)
    odd = _odd(random.Random(f"{seed} odd"), _dressed(random.Random(f"{seed} dressed"), plain))
    found = _strained(random.Random(f"{seed} strained"), _again(random.Random(f"{seed} again"), odd), strained)
    kept = random.Random(f"{seed} schedule")
    if kept.random() < 0.2:
        found = replace(found, policy=kept.choice(KEEPS), private_schedule=True)
    few = found.policy == "themis" and random.Random(f"{seed} f").random() < 0.5
    lend = random.Random(f"{seed} lend")
    found = replace(found, min_lend_s=lend.choice((15, 30, 90))) if lend.random() < 0.15 else found
    return replace(found, f=0.8) if few else found


def _again(rng: random.Random, case: Case) -> Case:
    """The case in which a tenant that has left the cells file may be in it again."""
    if case.vanishes_s is None or rng.random() < 0.4:
        return case
    return replace(case, returns_s=rng.randint(case.vanishes_s + 5, LENGTH_S - 30))


def _odd(rng: random.Random, case: Case) -> Case:
    """The case with tenants' apps that have no Agents, any policy, a loan and then no journal."""
    if rng.random() < 0.5:
        return case
    if rng.random() < 0.5:
        case = replace(case, asks=tuple(_without_agent(rng, case, ask) for ask in case.asks))
    if rng.random() < 0.4:
        case = replace(case, policy=rng.choice(ALL_POLICIES))
    if case.lent and rng.random() < 0.6:
        case = replace(case, failovers=((rng.randint(20, case.lent[0] - 20), "lost journal"),))
    return case


def _strained(rng: random.Random, case: Case, always: bool) -> Case:
    """Some cases become ones in which apps without Agents borrow all GPUs, and then one of the GPUs goes bad."""
    kind, more = case.kinds[0], replace(case, kinds=case.kinds[:1])
    if (rng.random() < 0.92 and not always) or kind.above > 1:
        return case
    cells, host = _with_a_spare(rng, [], more.kinds)
    everything = Ask("x0", "root.x", 1, kind.gpus * len(kind.hosts), rng.randint(0, 30), 10 * LENGTH_S, foreign=True)
    bad = rng.randint(20, LENGTH_S - 60), host, rng.randrange(kind.gpus)
    bare = Case(case.seed, case.policy, more.kinds, tuple(cells), (), bad=bad)
    asks = (_without_agent(rng, bare, ask) for ask in _asks(rng, cells, more.kinds) if ask.queue != "root.x")
    return replace(bare, asks=(everything, *asks))


def _without_agent(rng: random.Random, case: Case, ask: Ask) -> Ask:
    """An app whose master asks YARN for containers, of one size or of several, one by one or as one gang."""
    largest = max((c.gpus // len(c.hosts) for c in case.cells if c.owner == ask.queue), default=1)
    if rng.random() < 0.5 or ask.gang_gpus > largest or ask.within or ask.pinned or ask.opportunistic:
        return ask
    sizes = rng.sample(range(1, largest + 1), rng.randint(0, min(2, largest)))
    more = tuple((g, rng.randint(1, 2)) for g in sizes if g != ask.gang_gpus)
    plain = Ask(ask.name, ask.queue, ask.gang_gpus, ask.gangs, ask.start_s, ask.end_s, priority=ask.priority)
    return replace(plain, foreign=True, more=more, one_gang=rng.random() < 0.4)


def _dressed(rng: random.Random, case: Case) -> Case:
    """The case with what apps and machines can be beyond plain ones; half of all cases stay plain."""
    if rng.random() < 0.5:
        return case
    if case.lost and rng.random() < 0.6:
        host = rng.choice(case.kinds[0].hosts)
        case = replace(case, lost=None, bad=(case.lost[0], host, rng.randrange(case.kinds[0].gpus)))
    if case.lent and rng.random() < 0.6:
        times = sorted(rng.sample(range(20, LENGTH_S - 40), rng.randint(1, 2)))
        case = replace(case, failovers=tuple((t, rng.choice(FAILOVERS[:2])) for t in times))
    if case.policy == "isonomy" and len(case.kinds) > 1:
        first, second = case.kinds
        case = replace(case, kinds=(first, replace(second, gpu_type="k80")))
    types = [k.gpu_type for k in case.kinds]
    return replace(case, asks=tuple(_dress(rng, case, ask, types) for ask in case.asks))


def _dress(rng: random.Random, case: Case, ask: Ask, types: Sequence[str]) -> Ask:
    """Draws one app's options. Those that need cells are only root.b's: root.a is still compared with machines."""
    if ask.queue == "root.x":
        return replace(ask, foreign=rng.random() < 0.3 and ask.gang_gpus <= min(k.gpus for k in case.kinds))
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more["priority"] = rng.randint(1, 3)
    if len(types) > 1 and rng.random() < 0.4:
        more["gpu_type"] = rng.choice(types)
    if any(k.above > 1 for k in case.kinds) and not ask.together and rng.random() < 0.5:
        more["one_rack"] = True
    kind = rng.random()
    inner = [n for k in case.kinds for n in k.names[1:-1]]
    pins = [pin_of(c) for c in case.cells if c.owner == ask.queue and c.pinned and c.gpus >= ask.gang_gpus]
    if kind < 0.15:
        more["opportunistic"] = True
    elif kind < 0.4:
        more["lazy"] = True
    elif ask.queue == "root.b" and kind < 0.6 and inner:
        more["within"], more["one_rack"] = rng.choice(inner), False
    elif ask.queue == "root.b" and kind < 0.8 and pins:
        more["pinned"] = rng.choice(pins)
    return replace(ask, **more)


def _to_c(c: Cell) -> Cell:
    return Cell(c.kind, c.gpus, "root.c", c.first, c.hosts)


def _kinds(rng: random.Random) -> tuple[Kind, ...]:
    shapes = (
        (("gpu", "node"), (1, 4)),
        (("gpu", "pair", "node"), (1, 2, 4)),
        (("gpu", "pair", "node"), (1, 2, 4)),
        (("gpu", "switch", "socket", "node"), (1, 2, 4, 8)),
    )
    names, sizes = rng.choice(shapes)
    hosts = rng.randint(2, 4)
    above = 2 if hosts == 4 and rng.random() < 0.3 else 1
    first = Kind(names, sizes, tuple(f"n{i}" for i in range(hosts)), above)
    if rng.random() < 0.7:
        return (first,)
    return first, Kind(("gpu", "small"), (1, 2), tuple(f"m{i}" for i in range(rng.randint(1, 3))))


def _cut(rng: random.Random, kind: Kind, whole_only: bool) -> Iterator[Cell]:
    """The machines of a kind as cells, each somebody's or nobody's."""
    for at in range(0, len(kind.hosts), kind.above):
        hosts = kind.hosts[at : at + kind.above]
        if kind.above > 1 and rng.random() < 0.3:
            yield Cell(f"rack-{kind.names[-1]}", kind.gpus * kind.above, _owner(rng), 0, hosts)
            continue
        for host in hosts:
            yield from _parts(rng, kind, len(kind.names) - 1, host, 0, whole_only)


def _parts(rng: random.Random, kind: Kind, level: int, host: str, first: int, whole: bool) -> Iterator[Cell]:
    if level == 0 or whole or rng.random() < 0.4:
        owner = _owner(rng)
        yield Cell(kind.names[level], kind.sizes[level], owner, first, (host,), bool(owner) and rng.random() < 0.12)
        return
    size = kind.sizes[level - 1]
    for i in range(kind.sizes[level] // size):
        yield from _parts(rng, kind, level - 1, host, first + i * size, whole)


def _owner(rng: random.Random) -> str:
    return rng.choices(("root.a", "root.b", ""), (5, 3, 2))[0]


def _with_a_spare(rng: random.Random, cells: list[Cell], kinds: Sequence[Kind]) -> tuple[list[Cell], str]:
    """Whole machines only, one of which is nobody's; a machine that may be lost then."""
    kind = kinds[0]
    if kind.above > 1 or len(kinds) > 1:
        return cells, ""
    owners = [rng.choice(("root.a", "root.a", "root.b")) for _ in kind.hosts[1:]]
    whole = [Cell(kind.names[-1], kind.gpus, o, 0, (h,)) for h, o in zip(kind.hosts[1:], owners, strict=True)]
    return whole, rng.choice(kind.hosts)


def _asks(rng: random.Random, cells: Sequence[Cell], kinds: Sequence[Kind]) -> Iterator[Ask]:
    total = sum(kind.gpus * len(kind.hosts) for kind in kinds)
    own = {q: sorted(c.gpus for c in cells if c.owner == q) for q in (*TENANTS, "root.c")}
    for i in range(rng.randint(1, 2)):  # strangers, early and many
        gang = rng.choice((1, 1, 2, 4))
        yield Ask(f"x{i}", "root.x", gang, rng.randint(1, max(1, total // gang)), rng.randint(0, 30), 10 * LENGTH_S)
    for queue, most in (("root.a", 6), ("root.b", 3), ("root.c", 2)):
        if not own[queue]:
            continue
        for i in range(rng.randint(1, most)):
            sizes = [1, 2, *own[queue], sum(own[queue])]
            gang = rng.choice([g for g in sizes if g <= sum(own[queue])] or [1])
            start_s = rng.randint(5, LENGTH_S - 60)
            end_s = start_s + rng.choice((40, 80, 150, 10 * LENGTH_S))
            gangs = rng.choice((1, 1, 1, 2, 3))
            yield Ask(f"{queue[-1]}{i}", queue, gang, gangs, start_s, end_s, rng.random() < 0.4)
