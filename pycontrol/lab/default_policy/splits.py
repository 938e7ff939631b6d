"""The gain of splitting an app into several, or merging several into one, under the default policy."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pycontrol.lab.kit import Claim, Findings, Setup, Table, shown
from pycontrol.lab.runs import Interval, interval, run_many
from pycontrol.lab.themis.sweeps import CONVENTIONS, Scene, Variant, variant
from pycontrol.lab.themis.workloads import TraceScene
from pycontrol.simulation.trace_apps import TraceApp, Workload

OURS = variant("isonomy", "isonomy")
SIZE = 24
GOAL, LEAST = 0.99, 0.95
"""Lower bounds of the geometric mean over all cases, and of the upper end of any pattern's interval."""
FRESH = 4000
"""Seeds from here on were not used during the policy's design."""
VICTIMS = (0.3, 0.6, 0.9)
"""The apps to split, as quantiles of work."""


@dataclass(frozen=True)
class Pattern:
    """A way to split an app; `gap` between pieces as a share of one piece's part of the whole's completion time."""

    pieces: int
    gap: float

    @property
    def label(self) -> str:
        """In words."""
        when = "at once" if not self.gap else f"one after {self.gap:.0%} of another's time"
        return f"split into {self.pieces}, {when}"

    def of(self, app: TraceApp, whole_s: float) -> list[TraceApp]:
        """The pieces, with each phase's jobs dealt out in turn."""
        found = []
        for i in range(self.pieces):
            phases = tuple(p[i :: self.pieces] for p in app.phases if p[i :: self.pieces])
            if phases:
                at_s = app.submitted_s + i * self.gap * whole_s / self.pieces
                found.append(dataclasses.replace(app, app_id=f"{app.app_id}-{i:02d}", submitted_s=at_s, phases=phases))
        return found


PATTERNS = (
    *(Pattern(k, 0.0) for k in (2, 3, 5, 10, 20)),
    *(Pattern(k, gap) for k in (2, 5, 20) for gap in (0.25, 0.5, 1.0)),
)
QUICK_PATTERNS = (Pattern(2, 0.0), Pattern(5, 0.0), Pattern(5, 0.5))
MERGES = (2, 3, 5)
"""Numbers of consecutive apps of one user that are submitted as one app when the first arrives."""


@dataclass(frozen=True)
class SplitCase:
    """One comparison of the completion time with and without the change."""

    label: str
    where: str
    ratio: float
    """Changed / honest; below 1 the change pays."""


def splits(setup: Setup) -> Findings:
    """Splitting an app, and merging several, gain nothing under the default policy."""
    patterns = QUICK_PATTERNS if setup.quick else PATTERNS
    cases = list(search(setup, OURS, scenes(setup), patterns, MERGES[:1] if setup.quick else MERGES))
    everywhere = _mean(cases)
    by_label = {label: _mean([c for c in cases if c.label == label]) for label in dict.fromkeys(c.label for c in cases)}
    by_place = {where: _mean([c for c in cases if c.where == where]) for where in dict.fromkeys(c.where for c in cases)}
    worst = min(by_label, key=lambda x: by_label[x].high)
    return Findings(
        (
            Claim(
                "Splitting or merging apps of one user gains nothing.",
                f"target: geometric mean >= {GOAL}",
                f"changed / honest {shown(everywhere)}, {everywhere.n} cases",
                everywhere.mean >= GOAL,
            ),
            Claim(
                "No pattern of splitting or merging pays.",
                f"target: no 95 % interval below {LEAST}",
                f"the best, {worst}: {shown(by_label[worst])}",
                by_label[worst].high >= LEAST,
            ),
        ),
        (
            Table(
                "Time until all is done, changed / honest",
                ("pattern", "ratio", "cases", "least"),
                tuple(
                    (x, shown(i), i.n, f"{min(c.ratio for c in cases if c.label == x):.2f}")
                    for x, i in by_label.items()
                ),
            ),
            Table(
                "By workload", ("workload", "ratio", "cases"), tuple((x, shown(i), i.n) for x, i in by_place.items())
            ),
        ),
        (),
        (
            *CONVENTIONS,
            "every app has a user of its own; the pieces of one that is split are that user's",
            "what a split or a merge gains alone on the cluster is taken out: pieces pass the barriers of phases "
            "sooner, and a merged app's long jobs need not wait for the small app of its user",
            "a merged app is submitted when the first of its parts comes, so it is compared where all are known then",
        ),
        len({c.where for c in cases}),
        (),
        {"all": dataclasses.asdict(everywhere), **{k: dataclasses.asdict(i) for k, i in by_label.items()}},
    )


def scenes(setup: Setup) -> list[tuple[Scene, int]]:
    """(scene, number of seeds) of each scene."""
    seeds = len(setup.seeds_of(4, 1))
    levels = (4.0,) if setup.quick else (1.0, 2.0, 4.0)
    apps = 10 if setup.quick else SIZE
    sizes = {"testbed-64": 1.0} if setup.quick else {"testbed-64": 1.0, "paper-256": 4.0}
    found = [(Scene(w, c, apps, k * load), seeds) for w in ("w1", "w2") for c, load in sizes.items() for k in levels]
    path = None if setup.quick else setup.trace("philly/themis_w1_apps_B.csv.gz")
    if path is not None:
        found.append((TraceScene("B", "paper-256", path=path, limit=8), 1))
    return found


def search(
    setup: Setup,
    policy: Variant,
    where: Sequence[tuple[Scene, int]],
    patterns: Sequence[Pattern],
    merges: Sequence[int],
) -> Iterator[SplitCase]:
    """All cases of all scenes."""
    for scene, seeds in where:
        setup.note(f"{scene.label}: {len(patterns)} ways to split, {len(merges)} to merge, {seeds} seeds")
        for seed in range(FRESH, FRESH + seeds):
            world = World.of(policy, scene, seed, setup.processes)
            yield from world.splits(patterns)
            yield from world.merges(merges)


@dataclass(frozen=True)
class World:
    """One workload of apps that each have their own user."""

    policy: Variant
    scene: Scene
    seed: int
    workload: Workload
    processes: int

    @classmethod
    def of(cls, policy: Variant, scene: Scene, seed: int, processes: int) -> World:
        """The scene's apps, each with a user of its own."""
        loaded = scene.load(seed)
        apps = tuple(dataclasses.replace(a, user=f"u{i}") for i, a in enumerate(loaded.apps))
        return cls(policy, scene, seed, dataclasses.replace(loaded, apps=apps), processes)

    def splits(self, patterns: Sequence[Pattern]) -> Iterator[SplitCase]:
        """Cases in which an app is split, for apps of all sizes."""
        honest = self._ends([self.workload.apps])[0]
        able = sorted((a for a in self.workload.apps if sum(map(len, a.phases)) > 1), key=lambda a: a.work_gpu_s)
        plan = []
        for app, pattern in itertools.product((able[int(x * (len(able) - 1))] for x in VICTIMS), patterns):
            pieces = pattern.of(app, honest[app.app_id] - app.submitted_s)
            if len(pieces) > 1:
                plan.append((pattern, app, pieces))
        runs = [
            run
            for pattern, app, pieces in plan
            for run in (self._with([app], pieces), [app], dataclasses.replace(pattern, gap=0.0).of(app, 0.0))
        ]
        ends = self._ends(runs)
        for k, (pattern, app, pieces) in enumerate(plan):
            among, alone, alone_split = ends[3 * k : 3 * k + 3]
            gain = (max(alone_split.values()) - app.submitted_s) / (alone[app.app_id] - app.submitted_s)
            all_done_s = max(among[p.app_id] for p in pieces) - app.submitted_s
            ratio = all_done_s / (honest[app.app_id] - app.submitted_s) / gain
            yield SplitCase(pattern.label, self.scene.label, ratio)

    def merges(self, sizes: Sequence[int]) -> Iterator[SplitCase]:
        """Cases in which one app replaces several apps of a user."""
        plan = []
        for n, share in itertools.product(sizes, VICTIMS):
            at = int(share * (len(self.workload.apps) - n))
            parts = self.workload.apps[at : at + n]
            first = parts[0]
            if any(len(p.phases) > 1 or p.gang_gpus != first.gang_gpus for p in parts):
                continue
            together = [dataclasses.replace(p, user=first.user, submitted_s=first.submitted_s) for p in parts]
            one = dataclasses.replace(first, phases=(tuple(j for p in parts for j in p.phases[0]),))
            plan.append((parts, together, one))
        runs = [
            run
            for parts, apart, one in plan
            for run in (self._with(parts, apart), self._with(parts, [one]), apart, [one])
        ]
        ends = self._ends(runs)
        for k, (parts, _, one) in enumerate(plan):
            ids = {p.app_id for p in parts}
            done_s = [max(e[a] for a in e.keys() & ids) - one.submitted_s for e in ends[4 * k : 4 * k + 4]]
            ratio = done_s[1] / done_s[0] / (done_s[3] / done_s[2])
            yield SplitCase(f"merge {len(parts)}", self.scene.label, ratio)

    def _with(self, gone: Sequence[TraceApp], new: Sequence[TraceApp]) -> list[TraceApp]:
        ids = {a.app_id for a in gone}
        return [a for a in self.workload.apps if a.app_id not in ids] + list(new)

    def _ends(self, runs: Sequence[Sequence[TraceApp]]) -> list[Mapping[str, float]]:
        """{app: end} of each run."""
        jobs = []
        for apps in runs:
            ordered = tuple(sorted(apps, key=lambda a: (a.submitted_s, a.app_id)))
            jobs.append(self.policy.job(Workload(self.workload.name, ordered), self.scene, self.seed))
        return [
            {a.app_id: math.inf if a.finished_s is None else a.finished_s for a in r.apps}
            for r in run_many(jobs, self.processes)
        ]


def _mean(cases: Sequence[SplitCase]) -> Interval:
    """The geometric mean of the cases' ratios."""
    logs = interval([math.log(c.ratio) for c in cases])
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(min(logs.high, 700.0)), logs.n)
