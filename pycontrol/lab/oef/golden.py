"""Compares Gavel and Gandiva_fair with published results by job: Shockwave's runs of 120 jobs on 32 GPUs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pycontrol.lab import clusters
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.oef.artifact import ArtifactJob, ArtifactRounds, completions
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.policies.gandiva_fair import GandivaFair
from pycontrol.lab.policies.gavel import Gavel
from pycontrol.lab.runs import simulate
from pycontrol.policies.sharing import Sharing
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

FOLDER = "golden/shockwave"
TRACE = "job_traces/shockwave/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
SCALE, ARRIVAL = 6, 11
"""Columns of the trace."""
ROUND_S, RESTART_S = 120.0, 20.0
"""Gavel's round, and the part of it that a restarted job loses (published run times of such rounds: 100 s)."""
CLOSE, SAME = 0.1, 0.02
"""Relative difference of mean completion times that counts as equal; of the artifact's rules, simulated here."""
GPUS = 32
SWITCHES: Mapping[str, Mapping[str, bool]] = {
    "the same GPUs for each job, not the same part of the time": {"time_shares": False},
    "who arrives is not left out until the next allocation": {"waits": False},
    "what was received is not forgotten at each allocation": {"forgets": False},
    "GPUs that become free are filled at once": {"idles": False},
}
"""From the artifact's rules to ours, one after another."""


@dataclass(frozen=True)
class Pair:
    """A published run and our policy for it; each job is a tenant."""

    published: str
    policy: Sharing
    rules: ArtifactRounds | None = None
    """The artifact's own; None: its division depends on the models' throughputs, which this comparison leaves out."""

    @property
    def name(self) -> str:
        """Ours and theirs."""
        return f"{self.policy.name} as published {self.published}"


PAIRS = (
    Pair("max_min_fairness", Gavel(tenant="app", objective="water_filling"), ArtifactRounds(time_shares=False)),
    Pair("max_sum_throughput_perf", Gavel(tenant="app", objective="max_sum")),
    Pair("gandiva_fair", GandivaFair(tenant="app"), ArtifactRounds(time_shares=True)),
)
UNTRIED = ("allox", "finish_time_fairness", "min_total_duration", "shockwave")


@dataclass(frozen=True)
class Compared:
    """Completion times in the trace's order, seconds."""

    name: str
    theirs: np.ndarray
    ours: np.ndarray
    restarts: float

    @property
    def off(self) -> float:
        """Relative difference of the means."""
        return float(self.ours.mean() / self.theirs.mean() - 1)

    @property
    def rank(self) -> float:
        """Rank correlation, job by job."""
        return float(np.corrcoef(self.ours.argsort().argsort(), self.theirs.argsort().argsort())[0, 1])

    @property
    def middle(self) -> float:
        """Median of the jobs' relative differences."""
        return float(np.median(np.abs(self.ours / self.theirs - 1)))

    def row(self) -> tuple[object, ...]:
        """Of the table."""
        ends = (float(np.percentile(x, 95)) for x in (self.theirs, self.ours))
        return (
            self.name,
            float(self.theirs.mean()),
            float(self.ours.mean()),
            f"{self.off:+.1%}",
            f"{self.rank:.3f}",
            f"{self.middle:.1%}",
            *ends,
            self.restarts,
        )

    def claim(self, limit: float, why: str = "") -> Claim:
        """Whether the means agree."""
        return Claim(
            f"{self.name}: mean completion time within {limit:.0%}.",
            f"{self.theirs.mean():.0f} s (Shockwave's artifact)",
            f"{self.ours.mean():.0f} s ({self.off:+.1%})",
            abs(self.off) <= limit,
            f"Job by job: rank correlation {self.rank:.3f}, median difference {self.middle:.1%}. {why}".rstrip(),
        )


def golden(setup: Setup) -> Findings:
    """Gavel and Gandiva_fair against published results, job by job, and what the difference is made of."""
    trace = setup.trace(TRACE)
    claims: list[Claim] = []
    found: list[Compared] = []
    steps: list[tuple[str, str, float, str]] = []
    for pair in PAIRS:
        path = setup.trace(f"{FOLDER}/tacc_32gpus__{pair.published}__simulation.json")
        if path is None or trace is None:
            claims.append(Claim(f"{pair.name}: mean completion time.", "-", "-", None, "The public data is not there."))
            continue
        setup.note(pair.name)
        published = json.loads(path.read_text(encoding="utf-8"))
        more, said = _against(pair, np.array(published["jct_list"]), published_workload(trace, published), steps)
        found += more
        claims += said
    tables = (
        Table(
            "Completion times of the trace's jobs, seconds",
            (
                "run",
                "published mean",
                "our mean",
                "difference",
                "rank correlation",
                "median difference by job",
                "published p95",
                "our p95",
                "our restarts",
            ),
            tuple(c.row() for c in found),
        ),
        Table(
            "From the artifact's rules to ours, one after another",
            ("published", "change", "mean, s", "difference"),
            tuple(steps),
        ),
    )
    points = tuple(Series(c.name, c.theirs.tolist(), c.ours.tolist()) for c in found)
    figure = Figure("golden", "Completion times job by job", "published, s", "ours, s", points, "scatter", True, True)
    return Findings(
        tuple(claims),
        tables,
        (figure,) if points else (),
        (
            f"{GPUS} GPUs of one type, 8 machines of 4; a job's work is the GPU time that it had in the published run, "
            "so what is compared is who waits for whom, not how a batch size that changes moves a job's speed",
            f"rounds of {ROUND_S:.0f} s, a restart costs {RESTART_S:.0f} s, no locality; our placer, which fills a GPU "
            "as soon as it is free, where Gavel's rounds leave it idle to their end",
        ),
        0,
        (
            f"Published runs of {', '.join(UNTRIED)} have no policy here to hold them against.",
            "Where every GPU is alike, max-sum is indifferent between jobs, so who waits is up to each implementation.",
        ),
    )


def _against(
    pair: Pair, theirs: np.ndarray, workload: Workload, steps: list[tuple[str, str, float, str]]
) -> tuple[list[Compared], list[Claim]]:
    """The runs against a published one, with their claims; adds the way from its rules to ours to `steps`."""
    ours = Compared(pair.name, theirs, *_run(pair.policy, workload))
    if pair.rules is None:
        return [ours], [ours.claim(CLOSE)]
    ladder = _ladder(pair, workload, theirs)
    steps += [(pair.published, c.name, float(c.ours.mean()), f"{c.off:+.1%}") for c in (*ladder, ours)]
    made_of = "; ".join(f"{c.name}: {c.off:+.1%}" for c in ladder[1:])
    claims = [
        ladder[0].claim(SAME),
        ours.claim(CLOSE, f"From those rules to ours: {made_of}; our placer: {ours.off:+.1%}."),
    ]
    if not pair.rules.time_shares:
        return [ladder[0], ours], claims
    gangs = {a.user: float(a.gang_gpus) for a in workload.apps}
    weighted = _run(dataclasses.replace(pair.policy, weights=gangs), workload)
    same = Compared(f"{pair.name}, weights by gang", theirs, *weighted)
    return [ladder[0], ours, same], [*claims, same.claim(CLOSE, "Each job has the same part of the time, as there.")]


def _ladder(pair: Pair, workload: Workload, theirs: np.ndarray) -> list[Compared]:
    """The artifact's rules, and then each of ours in addition."""
    assert pair.rules is not None
    rules = pair.rules
    jobs = [ArtifactJob(a.submitted_s, a.gang_gpus, sum(a.phases[0]) / a.gang_gpus) for a in workload.apps]
    found = [
        Compared(f"{pair.published} by the artifact's rules", theirs, np.array(completions(jobs, GPUS, rules)), 0.0)
    ]
    for name, change in SWITCHES.items():
        switched = dataclasses.replace(rules, **change)
        if switched != rules:
            rules = switched
            found.append(Compared(name, theirs, np.array(completions(jobs, GPUS, rules)), 0.0))
    return found


def published_workload(trace: Path, theirs: Mapping[str, Any]) -> Workload:
    """A workload of the trace's jobs, with the work that they did in the published run."""
    rows = [line.split("\t") for line in trace.read_text(encoding="utf-8").splitlines() if line.strip()]
    served = [sum(by_worker.values()) for by_worker in theirs["job_run_time"].values()]
    apps = []
    for i, (row, gpu_s) in enumerate(zip(rows, served, strict=True)):
        gang = int(row[SCALE])
        apps.append(
            TraceApp(
                f"j{i:03d}", float(row[ARRIVAL]), gang, ((float(gpu_s),),), user=f"j{i:03d}", slowdown=(1.0, 1.0, 1.0)
            )
        )
    return Workload("shockwave-120", tuple(apps), str(trace.name))


def _run(policy: Sharing, workload: Workload) -> tuple[np.ndarray, float]:
    """(completion times in the trace's order, number of restarts)."""
    arbiter = dataclasses.replace(ARBITER, lease_s=ROUND_S)
    settings = SimulationSettings(arbiter=arbiter, checkpoint_s=0.0, restart_s=RESTART_S)
    result = simulate(workload, clusters.uniform(8, 4), policy, settings)
    by_app = {a.app_id: a.completion_s for a in result.apps}
    return np.array([by_app[a.app_id] for a in workload.apps]), metrics(result)["restarts"]
