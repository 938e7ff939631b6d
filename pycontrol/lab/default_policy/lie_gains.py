"""What each lie gains under the default policy, in as many paired cases as bring its interval to one percent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pycontrol.lab.default_policy import lie_search
from pycontrol.lab.default_policy.lie_search import WorkLie
from pycontrol.lab.default_policy.splits import OURS, Pattern, World
from pycontrol.lab.kit import Claim, Findings, Setup, Table, shown
from pycontrol.lab.runs import Interval, paired_ratio
from pycontrol.lab.themis import typed_lies
from pycontrol.lab.themis.sweeps import CONVENTIONS, Scene
from pycontrol.lab.themis.types import cluster
from pycontrol.model.topology import Topology
from pycontrol.simulation.trace_apps import Workload

HALF_WIDTH, CASES = 0.01, 1000
"""A lie is measured until its 95 % interval is this wide to each side, or wholly above 1: it costs; or in this many
cases."""
GAIN = 0.01
"""The most that a lie may gain on average."""
FRESH = 6000
"""Seeds from here on were not used during the policy's design."""
BATCH, LIARS = 12, 4
"""Seeds at a time, and liars of each: apps of all sizes."""
STAGGERED = tuple(Pattern(k, gap) for k in (2, 5) for gap in (0.25, 0.5, 1.0))

Cases = Callable[[Sequence[int]], list[tuple[float, float]]]
"""seeds -> (lying, honest) completion times."""


@dataclass(frozen=True)
class TypedScene(Scene):
    """Apps that are faster on one of two GPU types."""

    def load(self, seed: int) -> Workload:
        """Its apps."""
        return typed_lies.workload(seed)

    def topology(self) -> Topology:
        """Its machines."""
        return cluster()

    @property
    def label(self) -> str:
        """In words."""
        return "two GPU types"


def lies(setup: Setup) -> Findings:
    """What each lie gains under the default policy, in as many cases as bring its interval to one percent."""
    batch, most = (1, LIARS) if setup.quick else (BATCH, CASES)
    found = {name: measured(setup, name, cases, batch, most) for name, cases in probes(setup).items()}
    best = min(found, key=lambda name: found[name].mean)
    sure = {name: i for name, i in found.items() if i.high < 1}
    surest = min(sure or found, key=lambda name: found[name].high)
    width = max((_half_width(i) for i in found.values() if i.low <= 1), default=0.0)
    return Findings(
        (
            Claim(
                "No lie gains more than 1 % on average.",
                f"target: liar's time >= {1 - GAIN} of honest",
                f"the best of {len(found)}, {best}: {shown(found[best])}",
                found[best].mean >= 1 - GAIN,
            ),
            Claim(
                "No lie surely gains.",
                "target: no 95 % interval wholly below 1",
                f"the surest, {surest}: {shown(found[surest])}",
                not sure,
                f"Of {len(found)} intervals of 95 %, {0.025 * len(found):.1f} lie below 1 by chance where nothing is "
                "gained.",
            ),
        ),
        (
            Table(
                "The liar's completion time / that of its honest run",
                ("lie", "ratio", "half-width, %", "cases"),
                tuple((name, shown(i), f"{100 * _half_width(i):.1f}", i.n) for name, i in found.items()),
            ),
        ),
        (),
        (
            *CONVENTIONS,
            f"each case is one liar, or two that lie together, in a workload of its own seed, against the same run "
            f"without the lie; a lie is measured until its interval is +- {HALF_WIDTH:.0%} or shows that it costs, or "
            f"in {CASES} cases; of those that may gain, the widest is +- {width:.1%}",
            "what staggered pieces gain alone on the cluster is taken out: they pass the barriers of phases sooner",
        ),
        max(i.n for i in found.values()),
        (),
        {name: dataclasses.asdict(i) for name, i in found.items()},
    )


def probes(setup: Setup) -> Mapping[str, Cases]:
    """By lie: how its cases are made."""
    crowded, typed = Scene("w1", apps=12, faster=4.0), TypedScene("w1")
    found = {lie.name: partial(_told, setup, crowded, lie) for lie in lie_search.lies(setup.quick)}
    for name, said in typed_lies.LIES.items():
        found[f"{name} on a GPU type"] = partial(_told, setup, typed, WorkLie(name, said))
    pieces = {p.label: partial(_split, setup, crowded, p) for p in STAGGERED[: 1 if setup.quick else None]}
    return {**found, **pieces}


def _told(setup: Setup, where: Scene, lie: WorkLie, seeds: Sequence[int]) -> list[tuple[float, float]]:
    return lie_search.times(setup, where, OURS, seeds, [lie], LIARS)[lie.name]


def _split(setup: Setup, where: Scene, pattern: Pattern, seeds: Sequence[int]) -> list[tuple[float, float]]:
    """Relative to what the same pieces gain alone on the cluster."""
    worlds = [World.of(OURS, where, seed, setup.processes) for seed in seeds]
    return [(case.ratio, 1.0) for world in worlds for case in world.splits([pattern])]


def measured(setup: Setup, name: str, cases: Cases, batch: int, most: int) -> Interval:
    """The liar's completion time / honest, geometric mean, on ever more seeds."""
    pairs: list[tuple[float, float]] = []
    begin = FRESH
    while True:
        pairs += cases(range(begin, begin + batch))
        begin += batch
        found = paired_ratio([t for t, _ in pairs], [t for _, t in pairs])
        if _half_width(found) <= HALF_WIDTH or found.low > 1 or len(pairs) >= most:
            setup.note(f"{name}: {shown(found)}, {found.n} cases")
            return found


def _half_width(found: Interval) -> float:
    return (found.high - found.low) / 2
