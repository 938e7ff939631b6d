"""What a run of chaos does and when, drawn from its seed: a plan is data, and the same for the same seed and length."""

from __future__ import annotations

import random
from dataclasses import dataclass

CALM_AFTER = 0.8
"""The fraction of the time in which faults begin; the rest is for recovery."""
GAP_S = 14.0
"""Mean time between two faults."""
FREEZE_S = (2.0, 120.0)
DOWN_S = (2.0, 25.0)
WRONG_CLOCK_S = (45.0, 150.0)
"""A control plane that starts on a busy machine takes half a minute: only after that its clock matters."""
SKEW_S = 600.0

KILLED = {"plane": 3.0, "rm": 1.0, "nm": 1.0, "am": 1.0, "agent": 1.0, "worker": 2.0, "namenode": 0.5, "datanode": 0.5}
FROZEN = {"plane": 2.0, "rm": 1.0, "nm": 1.0, "am": 0.7, "agent": 1.0, "worker": 1.5, "namenode": 0.7, "datanode": 0.7}
LINKS = {
    "agents": 2.0,
    "bridge": 2.0,
    "webhdfs": 2.0,
    "am-rm": 1.0,
    "nm-rm": 0.7,
    "am-nm": 1.0,
    "clients-rm": 0.5,
    "hdfs-namenode": 1.0,
    "hdfs-datanode": 1.0,
}
WAYS = ("delay", "stall", "cut", "lossy")
KINDS = {"kill": 3.0, "freeze": 3.0, "link": 3.0, "busy": 1.0, "disk": 0.7, "second": 0.5, "clock": 0.7}
"""The weight of each kind."""


@dataclass(frozen=True)
class Fault:
    """`what` of a kind goes wrong at a time, for so long; `pick` in 0..1 chooses among what is there then."""

    at_s: float
    kind: str
    what: str
    way: str
    for_s: float
    pick: float

    @property
    def name(self) -> str:
        """The name of the kind of fault."""
        return " ".join(filter(None, (self.kind, self.what, self.way if self.kind == "link" else "")))

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.what, self.way, f"{self.for_s:.0f} s")))


@dataclass(frozen=True)
class AppPlan:
    """An app that is submitted, and again when it has ended while there is time: `seconds` of training for each job."""

    name: str
    queue: str
    scheduler: str
    seconds: float
    seed: int


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    seed: int
    minutes: float
    cells: bool
    kerberos: bool
    apps: tuple[AppPlan, ...]
    faults: tuple[Fault, ...]

    @property
    def world(self) -> str:
        """What it has, for people."""
        return f"{'with' if self.cells else 'without'} cells, {'with' if self.kerberos else 'without'} Kerberos"


def draw(seed: int, minutes: float) -> Plan:
    """Two Hyperband apps that want more than there is, a plain job, and faults; cells for every second seed,
    Kerberos for every third."""
    rng = random.Random(f"chaos {seed}")
    apps = (
        AppPlan("vision", "research", "hyperband", 40.0, rng.randrange(1000)),
        AppPlan("speech", "prod", "hyperband", 30.0, rng.randrange(1000)),
        AppPlan("plain", rng.choice(("research", "prod")), "single", 60.0, rng.randrange(1000)),
    )
    return Plan(seed, minutes, seed % 2 == 1, seed % 3 == 0, apps, tuple(_faults(rng, minutes * 60 * CALM_AFTER)))


def _faults(rng: random.Random, until_s: float) -> list[Fault]:
    found, at_s = [], 5.0
    while (at_s := at_s + rng.expovariate(1 / GAP_S)) < until_s:
        found.append(_fault(rng, at_s))
    return found


def _fault(rng: random.Random, at_s: float) -> Fault:
    kind = _one(rng, KINDS)
    low, high = {"freeze": FREEZE_S, "link": FREEZE_S, "clock": WRONG_CLOCK_S}.get(kind, DOWN_S)
    for_s = low * (high / low) ** rng.random()
    what = way = ""
    if kind in ("kill", "freeze"):
        what = _one(rng, KILLED if kind == "kill" else FROZEN)
    elif kind == "link":
        what, way = _one(rng, LINKS), rng.choice(WAYS)
    elif kind == "clock":
        way = f"{rng.uniform(-SKEW_S, SKEW_S):+.0f}"
    return Fault(at_s, kind, what, way, for_s, rng.random())


def _one(rng: random.Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
