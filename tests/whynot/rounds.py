"""Random rounds for `why not`: what the search finds against every change of every kind, and against what comes true.

Each round is a live Arbiter with apps that run and wait. The answer for an app that waits is compared with brute force:
all changes that exist, with none left out by counting, each played on a stage of its own. And a change that was found
is made to the live Arbiter, whose next round must give the app as many GPUs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pycontrol.arbiter.round import standin
from pycontrol.arbiter.views.settings import RoundTimer, Settings
from pycontrol.lab.runs import CellsOf
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask, PartitionCapacity, Queue
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.themis import Themis
from pycontrol.simulation.scene import Gets, Scene, Stage, scene_of
from pycontrol.simulation.whynot import Change, Changes, Kind, search
from tests.arbiter.mini import CELLS, Mini
from tests.cells.files import layout_of

POLICIES = ("isonomy", "tiresias", "drf", "yarn_cs", "srtf", "max_min", "gandiva", "themis")
SETTINGS = Settings(lease_s=600, grant_timeout_s=60, recovery_s=0, round_retry_s=5)
QUEUES = ("root.a", "root.b", "root.q")
FOUND_LEAST = 0.99


class Everything(Changes):
    """All changes that exist: none is left out by counting."""

    def _fits(self, demand: Demand, more: Sequence[Gpu] = ()) -> bool:
        return True

    @property
    def room_gpus(self) -> int:
        return 1 << 30

    @room_gpus.setter
    def room_gpus(self, _: int) -> None:
        pass


@dataclass
class Tally:
    """How often each kind helps, is found, and is found as small as brute force finds it; what did not come true."""

    rounds: int = 0
    asked: int = 0
    unchanged: int = 0
    """Rounds that are held on the live Arbiter without a change, and must give what was said."""
    inexact: int = 0
    """Scenes of which no exact copy can be made."""
    helps: Counter[Kind] = field(default_factory=Counter)
    found: Counter[Kind] = field(default_factory=Counter)
    larger: list[str] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)
    came_true: Counter[Kind] = field(default_factory=Counter)

    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        missed = [
            f"{kind}: found {self.found[kind]} of {n}"
            for kind, n in self.helps.items()
            if self.found[kind] < FOUND_LEAST * n
        ]
        return [*missed, *self.larger, *self.untrue]


class Live(Mini):
    """A random cluster with apps."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.name = rng.choice(POLICIES)
        self.cells = CellsOf(layout_of(CELLS)) if rng.random() < 0.2 else None
        hosts = (
            [("n1", 4), ("n2", 4)]
            if self.cells
            else [(f"n{i}", rng.choice((2, 4, 4))) for i in range(rng.randint(2, 4))]
        )
        limited = [rng.choice((1.0, 1.0, 0.25, 0.5)) for _ in QUEUES]
        shares = [PartitionCapacity(1 / 3, most) for most in limited]
        queues = [
            Queue(q, 1 / 3, x.max_capacity, partitions=dict.fromkeys(("", "x"), x))
            for q, x in zip(QUEUES, shares, strict=True)
        ]
        policy: Any = registry.make(self.name)
        more: dict[str, Any] = {}
        if self.cells is not None:
            more["supply"] = self.cells()
            policy = ByVirtualCluster(policy)
        super().__init__(policy, SETTINGS, hosts, queues, **more)
        types = ("v100", "p100") if rng.random() < 0.75 else ("gpu",)
        self.nodes = tuple(
            replace(
                n,
                attributes={"gpu_type": rng.choice(types)},
                partition="x" if rng.random() < 0.1 else "",
                rack=n.rack if self.cells else rng.choice("rs"),
            )
            for n in self.nodes
        )
        self.types = sorted({n.attributes["gpu_type"] for n in self.nodes})
        self.send(self.snapshot())
        if rng.random() < 0.25:
            self.send(ev.NodeDown(rng.choice(self.nodes).node_id, "lost"))
        self.count = 0
        for _ in range(rng.randint(2, 4)):
            self.come()
        self.run(1.5)
        self.settle()
        self.trouble()
        for _ in range(rng.randint(1, 3)):
            self.come()
        self.run(rng.choice((0.0, 1.5, rng.uniform(1, 700))), 2.0)
        self.settle()

    def come(self) -> None:
        """An app comes, with an Agent or without."""
        rng = self.rng
        self.count += 1
        name, queue, user = f"application_1_{self.count:04}", rng.choice(QUEUES), rng.choice(("u", "v"))
        gang = rng.choice((1, 2, 2, 3, 4, 6, 8))
        if rng.random() < 0.25:
            together = rng.random() < 0.4
            only_on = (rng.choice(self.nodes).host,) if rng.random() < 0.3 else ()
            tags = ("isonomy.gang",) if together else ()
            self.foreign(name, min(gang, 4), rng.randint(1, 3), user, tags=tags, queue=queue, only_on=only_on)
            return
        self.app(
            name,
            gang,
            rng.randint(1, 3),
            queue,
            1e5,
            user,
            work_left_gpu_s=1e5 * rng.random(),
            scope=rng.choice((*Scope, Scope.CLUSTER)),
            gpu_type=rng.choice(self.types) if rng.random() < 0.8 else "",
            within="pair" if self.cells and rng.random() < 0.2 and gang <= 2 else "",
            opportunistic=self.cells is not None and rng.random() < 0.15,
        )

    def trouble(self) -> None:
        """Perhaps a machine is drained or has a bad GPU."""
        rng, host = self.rng, self.rng.choice(list(self.a.cluster.node_at) or ["n1"])
        node = self.a.cluster.node_at.get(host)
        if rng.random() < 0.2:
            self.send(ev.OperatorCommand("drain", host))
        elif rng.random() < 0.2 and node is not None:
            self.send(ev.NodeUp(replace(node, bad_gpus=frozenset({0}))))

    def settle(self) -> None:
        """Agents use what they hold, and placements succeed."""
        for name in list(self.a.durable.live):
            idle = [
                x
                for x in self.a.durable.leases.of(name)
                if not x.container_id and not any(g in self.a.workers.at for g in x.gpus)
            ]
            for k, gang in enumerate(self.a.holdings.gangs_of(name) if name in self.a.agents and idle else ()):
                if not any(g in self.a.workers.at or x.container_id for x in gang for g in x.gpus):
                    self._use_gang(name, f"j{self._ids}.{k}", [g for x in gang for g in x.gpus])
        for place in self.places():
            if place.node_id in self.a.cluster.nodes:
                self.up(place)

    def _use_gang(self, name: str, job: str, gpus: list[Gpu]) -> None:
        hosts: dict[str, list[Gpu]] = {}
        for gpu in sorted(gpus):
            hosts.setdefault(gpu.host, []).append(gpu)
        plans = []
        for mine in hosts.values():
            self._ids += 1
            plans.append(ev.WorkerPlan(f"w{self._ids}", job, tuple(mine), self._ids))
        self.send(ev.UsePlanned(name, f"u{self._ids}", tuple(plans)))
        for p in plans:
            self.send(ev.AskChanged(Ask(f"{name}_1", name, p.allocation_request_id, len(p.gpus), 1)))

    def waiting(self) -> list[str]:
        """Apps that want more."""
        a = self.a
        return [
            x
            for x in a.durable.live
            if x in a.agents.unmet or (x in a.agents.unmanaged_apps and standin.waits(a.holdings, x))
        ]

    def scene(self) -> Scene:
        """What the control plane would hand over."""
        return scene_of(self.a, self.now)

    def stage(self, scene: Scene) -> Stage:
        """A stage of its own."""
        return Stage(scene)

    def make(self, app_id: str, events: Sequence[ev.Event]) -> int:
        """Let a change happen and hold a round; returns the GPUs that the app holds more."""
        held = self.a.holdings.holding(app_id)
        self.a.holdings.timer.failed(float("inf"))  # no round begins between the events
        for event in events:
            self.send(event)
        self.a.holdings.timer = RoundTimer(self.a.settings.round_retry_s)
        self.a.clerk.request_round(self.now)
        self.send(ev.Tick())
        return self.a.holdings.holding(app_id) - held


def full(**more: Any) -> Mini:
    """A machine of 4 GPUs of which `big` trains on 3, in a queue of its own."""
    m = Mini("isonomy", **more)
    m.start_app("big", 3, 1, "root.other", user="v", after_s=1.0)
    return m


def brute(scene: Scene, app_id: str, live: Live) -> dict[Kind, Change]:
    """Kind -> a smallest change that helps."""
    found: dict[Kind, Change] = {}
    a = live.stage(scene).a
    for kind, changes in Everything(a, scene, app_id).by_kind().items():
        for change in changes:
            if (kind not in found or change.size < found[kind].size) and played(live, scene, app_id, change.events):
                found[kind] = change
    return found


def played(live: Live, scene: Scene, app_id: str, events: Sequence[ev.Event]) -> Gets | None:
    """What the app gets on a stage of its own."""
    return live.stage(scene).play(app_id, events)


def one(seed: int, tally: Tally) -> None:
    """One round, counted in the tally."""
    live = Live(seed)
    tally.rounds += 1
    before = tally.unchanged
    waiting = live.waiting()
    if not waiting or live.a.rounds.current is not None:
        return
    app_id, scene = live.rng.choice(waiting), live.scene()
    if not live.stage(scene).exact:
        tally.inexact += 1
        return
    unchanged, bids = played(live, scene, app_id, ()), isinstance(registry.make(live.name), Themis)
    if not bids and (unchanged is not None or live.rng.random() < 0.2):
        tally.unchanged += 1
        got = live.make(app_id, ())
        if (got > 0) != (unchanged is not None):
            tally.untrue.append(f"seed {seed}, {live.name}: the next round gives {got}, {unchanged} was said")
    if unchanged is not None or tally.unchanged > before:
        return
    tally.asked += 1
    helps = brute(scene, app_id, live)
    a = live.stage(scene).a
    found, _, _ = search(Changes(a, scene, app_id).by_kind(), lambda events: played(live, scene, app_id, events))
    mine = {c.kind: (c, gets) for c, gets in found}
    for kind, change in helps.items():
        tally.helps[kind] += 1
        tally.found[kind] += kind in mine
        if kind in mine and mine[kind][0].size > change.size:
            tally.larger.append(f"seed {seed}: {mine[kind][0]} where {change} helps")
    if mine and not bids:  # Agents here bid in another way
        change, gets = live.rng.choice(list(mine.values()))
        got = live.make(app_id, change.events)
        tally.came_true[change.kind] += got > 0
        if got <= 0:
            tally.untrue.append(f"seed {seed}, {live.name}: {change.text} gives nothing, {dict(gets.gpus)} was said")


def run(seeds: Sequence[int]) -> Tally:
    """The rounds of these seeds."""
    tally = Tally()
    for seed in seeds:
        one(seed, tally)
    return tally
