"""Kueue's own scale workloads through our control plane: admissions a second, and what one writes to disk."""

from __future__ import annotations

import heapq
import itertools
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.lab.kit import Claim, Findings, Setup, Table
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, Queue, YarnApp
from pycontrol.policies import salvage
from pycontrol.policies.registry import make
from pycontrol.runtime.driver import BATCH_EVENTS
from pycontrol.runtime.journal import SqliteJournal


@dataclass(frozen=True)
class Class:
    """Workloads of one size: each queue creates `count`, one each `every_s`."""

    name: str
    count: int
    every_s: float
    run_s: float
    priority: int
    gpus: int


@dataclass(frozen=True)
class Load:
    """A configuration of Kueue's test/performance/scheduler, and what its continuous integration needs for it."""

    name: str
    cohorts: int
    queues: int
    """Of a cohort."""
    classes: tuple[Class, ...]
    wall_s: float
    """Mean of its own runs (rangespec.yaml)."""
    waits_s: tuple[float, ...]
    """Mean time to admission of each class, there."""
    quota: int = 20
    borrows: int = 100

    @property
    def workloads(self) -> int:
        """In all."""
        return self.cohorts * self.queues * sum(c.count for c in self.classes)


BASELINE = Load(
    "baseline",
    5,
    6,
    (
        Class("small", 350, 0.1, 0.2, 50, 1),
        Class("medium", 100, 0.5, 0.5, 100, 5),
        Class("large", 50, 1.2, 1.0, 200, 20),
    ),
    351.116,
    (215.468, 76.768, 16.501),
)
LARGE = Load(
    "large-scale",
    10,
    100,
    (
        Class("small", 35, 0.06, 0.15, 50, 1),
        Class("medium", 11, 0.3, 0.35, 100, 5),
        Class("large", 4, 0.7, 0.7, 200, 20),
    ),
    1179.411,
    (700.379, 256.413, 105.604),
)


class World:
    """YARN with one machine of a quota's GPUs for each queue; apps without Agents ask for one container each.

    In virtual time, in which what the control plane computes takes as long as it takes on a core of its own, so that
    other processes of this machine do not matter. Events are handled as the driver does: in batches, each of which is
    durable before its effects.
    """

    def __init__(self, load: Load, folder: Path, policy: str) -> None:
        self.load, self.policy = load, make(policy)
        self.arbiter = Arbiter(Settings(recovery_s=0.0), self.policy)
        self.journal = SqliteJournal(folder / "journal.sqlite")
        self.now_s = self.busy_s = 0.0
        self.todo: list[tuple[float, int, Callable[[], None]]] = []
        self.said: deque[ev.Event] = deque()
        self.ids = itertools.count(1)
        self.kind: dict[str, Class] = {}
        self.created_s: dict[str, float] = {}
        self.admitted_s: dict[str, float] = {}
        self.left = load.workloads
        self.rounds = self.transactions = 0

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        """Does it at that time."""
        heapq.heappush(self.todo, (at_s, next(self.ids), what))

    def run(self, note: Callable[[str], None]) -> None:
        """Until all have ended."""
        self._begin()
        while self.left and (self.said or self.todo):
            while self.todo and self.todo[0][0] <= self.now_s:
                heapq.heappop(self.todo)[2]()
            wake_s = self.arbiter.next_wake_s(self.now_s)
            if self.said or (wake_s is not None and wake_s <= self.now_s):
                self._turn([self.said.popleft() for _ in range(min(BATCH_EVENTS, len(self.said)))] or [ev.Tick()])
            else:
                due = (self.todo[0][0] if self.todo else math.inf, math.inf if wake_s is None else wake_s)
                self.now_s = max(self.now_s, min(due))
            note(f"{self.load.name}: {len(self.admitted_s)} of {self.load.workloads} after {self.now_s:.0f} s")
        self.journal.close()

    def _turn(self, events: Sequence[ev.Event]) -> None:
        begin_s, seq = time.thread_time(), self.journal.seq
        effects = self.arbiter.handle_all(events, self.now_s)
        facts = self.arbiter.take_facts()
        self.arbiter.check(facts, effects)
        self.journal.append(facts, self.now_s)
        for effect in effects:
            if isinstance(effect, ev.Solve):
                self.rounds += 1
                plan = salvage.decide(self.policy, effect.snapshot, effect.bids, effect.seed).plan
                self.said.appendleft(ev.Decided(effect.snapshot.round_id, plan))
        took_s = time.thread_time() - begin_s
        self.busy_s, self.now_s = self.busy_s + took_s, self.now_s + took_s
        self.transactions += self.journal.seq > seq
        for effect in effects:
            if isinstance(effect, ev.Place):
                self._place(effect)

    def _begin(self) -> None:
        places = [f"root.c{c}.q{q}" for c in range(self.load.cohorts) for q in range(self.load.queues)]
        share, most = 1 / len(places), (1 + self.load.borrows / self.load.quota) / len(places)
        queues = tuple(Queue(p, share, min(1.0, most)) for p in places)
        nodes = tuple(Node(f"n{i}:1", f"n{i}", f"r{i // 20}", self.load.quota) for i in range(len(places)))
        self._turn([ev.ClusterSnapshot(True, nodes, (), (), (), queues)])
        self.busy_s = self.now_s = 0.0
        for k, place in enumerate(places):
            for kind in self.load.classes:
                for n in range(kind.count):
                    name = f"application_{k + 1}_{len(self.kind):06d}"
                    self.kind[name] = kind
                    self.at(n * kind.every_s, partial(self._arrive, name, place))

    def _arrive(self, name: str, place: str) -> None:
        kind = self.kind[name]
        self.created_s[name] = self.now_s
        app = YarnApp(name, place, place, name, "x", self.now_s, frozenset(), name, kind.priority)
        self.said += ev.AppAdded(app), ev.AskChanged(Ask(name, name, 1, kind.gpus, 1))

    def _place(self, e: ev.Place) -> None:
        name = e.ask.app_id
        at = Container(f"c{next(self.ids)}", name, e.node_id, e.gpus, e.lease_id, 1, name)
        self.admitted_s[name] = self.now_s
        self.said += (
            ev.DirectiveDone(e.directive_id, True, at.container_id),
            ev.AskChanged(replace(e.ask, count=0)),
            ev.ContainerUp(at, True),
        )
        self.at(self.now_s + self.kind[name].run_s, partial(self._end, at))

    def _end(self, at: Container) -> None:
        self.left -= 1
        self.said += ev.ContainerGone(at.container_id), ev.AppRemoved(at.app_id, "FINISHED")


def written() -> int:
    """Bytes that this process has given to the kernel to write so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


@dataclass(frozen=True)
class Admitted:
    """What a load came to under a policy."""

    policy: str
    took_s: float
    """From the first creation to the last end."""
    per_s: float
    """Admissions a second, from the first creation to the last admission."""
    busy_s: float
    """CPU seconds of one core."""
    waits_s: tuple[float, ...]
    """Mean time to admission of each class."""
    facts: float
    """Facts of one workload in the journal, from its creation to its end."""
    file_bytes: float
    """By which the journal's file grew for it."""
    written_bytes: float
    """That SQLite gave to the kernel for it: its log, and from there the file."""
    per_transaction: float
    """Workloads whose changes share a transaction, which waits for the disk once."""


def play(load: Load, policy: str, note: Callable[[str], None]) -> Admitted:
    """One run, with the journal on disk."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(load, Path(folder), policy)
        begun = written()
        world.run(note)
        n, size = len(world.admitted_s), world.journal.path.stat().st_size
        bytes_written = written() - begun
    waits: dict[str, list[float]] = {c.name: [] for c in load.classes}
    for name, at_s in world.admitted_s.items():
        waits[world.kind[name].name].append(at_s - world.created_s[name])
    return Admitted(
        policy,
        world.now_s,
        n / max(world.admitted_s.values()),
        world.busy_s,
        tuple(float(np.mean(x)) for x in waits.values()),
        world.journal.seq / n,
        size / n,
        bytes_written / n,
        n / world.transactions,
    )


def kueue(setup: Setup) -> Findings:
    """Kueue's scale workloads (the large one with --full): admissions a second and bytes on disk, beside its CI's."""
    loads = (LARGE if setup.full else BASELINE,)
    if setup.quick:
        loads = (replace(BASELINE, cohorts=1, classes=_fewer(BASELINE, 10)),)
    claims, rows = list[Claim](), list[tuple[object, ...]]()
    for load in loads:
        theirs_s, run = load.workloads / load.wall_s, play(load, "isonomy", setup.note)
        if not setup.quick:
            rows.append((load.name, "Kueue's CI", round(load.wall_s), f"{theirs_s:.0f}", *_shown(load.waits_s), "-"))
        rows.append(
            (load.name, "isonomy", round(run.took_s), f"{run.per_s:.0f}", *_shown(run.waits_s), f"{run.busy_s:.0f}")
        )
        claims += [
            Claim(
                f"{load.name}, {load.workloads} workloads: admissions a second.",
                f"{theirs_s:.1f} (its CI, to the end of the last)",
                f"{run.per_s:.1f}, with {1000 * run.busy_s / load.workloads:.1f} ms of CPU for one",
                run.per_s >= theirs_s if not setup.quick else None,
                "Rounds are 0.3 s apart, so that jobs of 0.2 s leave GPUs idle; a round looks at each app that waits.",
            ),
            Claim(
                f"{load.name}: bytes on disk for one workload, from its creation to its end.",
                "not published; its scheduler patches the workload's status once, which etcd keeps as a whole new "
                "object, and writes two events",
                f"the journal grows by {run.file_bytes:.0f}; SQLite writes {run.written_bytes:.0f} with its log, "
                f"{run.facts:.1f} facts; {run.per_transaction:.1f} workloads share a wait for the disk",
                None,
            ),
        ]
    columns = (
        "load",
        "who",
        "all ended after, s",
        "admissions a second",
        "small waits, s",
        "medium",
        "large",
        "CPU, s",
    )
    return Findings(
        tuple(claims),
        (Table("Kueue's scale workloads", columns, tuple(rows)),),
        (),
        (
            "the Arbiter and the journal, without the ResourceManager and the bridge to it; there an API server with "
            "etcd, no kubelets. Each workload is one container here and one pod there",
            "virtual time, in which the Arbiter's CPU time counts as if it had a core of its own; waits for the disk "
            "do not count",
            "a queue may use its quota and the borrowing limit; a workload's priority is that of its app. Kueue "
            "serves high priorities first and preempts; our order is among queues first, and no lease ends so early",
        ),
        1,
    )


def _fewer(load: Load, part: int) -> tuple[Class, ...]:
    return tuple(replace(c, count=c.count // part) for c in load.classes)


def _shown(waits_s: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{s:.0f}" for s in waits_s)
