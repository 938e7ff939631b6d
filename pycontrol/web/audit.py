"""Checks the journal against what the NodeManagers recorded themselves.

Evidence: each NodeManager's executor appends a line when a container starts and when it has ended, with the
GPU ids that it put into CUDA_VISIBLE_DEVICES. A rule without evidence is reported as unchecked, never as kept.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycontrol.arbiter.facts import AppEnded, Durable, Fact, LeaseEnded, LeaseGranted, LeaseRevoking, LeaseStarted
from pycontrol.model.topology import Gpu

GANG_S = 60.0
"""All workers of a gang are launched within this time."""
OVERRUN_S = 20.0
"""How long after a lease's end its container may still be seen (kill, heartbeat, clean-up)."""
CLOCK_S = 2.0
"""Clocks of machines may differ by this."""


@dataclass
class Run:
    """One container as a NodeManager saw it, seconds."""

    container: str
    node: str
    gpus: tuple[int, ...]
    lease: str
    start_s: float
    end_s: float | None = None


def read_evidence(files: Iterable[Path]) -> list[Run]:
    """The runs with GPUs; a line that cannot be read raises ValueError naming file and line."""
    runs: dict[str, Run] = {}
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                e = json.loads(line)
                if e["event"] == "start" and e["gpu_ids"]:
                    gpus = tuple(int(g) for g in e["gpu_ids"])
                    run = Run(e["container"], _host(e["node"]), gpus, e.get("lease", ""), e["time_ms"] / 1000)
                    runs.setdefault(e["container"], run)
                elif e["event"] == "end" and e["container"] in runs:
                    runs[e["container"]].end_s = e["time_ms"] / 1000
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}:{number}: not a line of evidence ({error})") from error
    return sorted(runs.values(), key=lambda r: r.start_s)


def _host(node: str) -> str:
    return node.rpartition(":")[0] if ":" in node else node


@dataclass
class Held:
    """One lease's life in the journal, seconds."""

    gpu: Gpu
    app_id: str
    grant_id: str
    from_s: float
    to_s: float | None = None


class _Journal:
    """Leases over time, and the launches of gangs."""

    def __init__(self, facts: Iterable[tuple[int, float, Fact]]) -> None:
        self.state = Durable()
        self.held: list[Held] = []
        self.launches: list[tuple[float, LeaseStarted, str]] = []
        self.ended_apps: set[str] = set()
        open_: dict[Gpu, Held] = {}
        for _, time_s, fact in facts:
            gpu = getattr(fact, "gpu", None)
            self.state.apply(fact)
            if (isinstance(fact, LeaseGranted) and not fact.after_current) or isinstance(fact, LeaseEnded):
                assert gpu is not None
                if gpu in open_:
                    open_.pop(gpu).to_s = time_s
                present = self.state.leases.get(gpu)
                if present is not None:
                    open_[gpu] = Held(gpu, present.app_id, present.grant_id, time_s)
                    self.held.append(open_[gpu])
            elif isinstance(fact, LeaseStarted):
                self.launches.append((time_s, fact, self.state.leases[fact.gpu].app_id))
            elif isinstance(fact, AppEnded):
                self.ended_apps.add(fact.app_id)
            elif isinstance(fact, LeaseRevoking):
                continue


def audit(facts: Iterable[tuple[int, float, Fact]], evidence: Iterable[Path] | None) -> dict[str, Any]:
    """{checked: counts, unchecked: rules without evidence, violations: [{kind, what, when}]}."""
    journal = _Journal(facts)
    violations: list[dict[str, Any]] = []
    files = list(evidence or ())
    runs = read_evidence(files)
    _no_gpu_twice(runs, violations)
    matched = _as_granted(runs, journal, violations)
    _leases_end(journal, violations)
    gangs = _gangs_whole(journal, violations)
    unchecked = []
    if not files:
        unchecked = ["no GPU in two containers", "CUDA_VISIBLE_DEVICES as granted"]
    started = {fact.container_id for _, fact, _ in journal.launches}
    seen = {r.container for r in runs}
    if files:
        for container in sorted(started - seen):
            violations.append({"kind": "no evidence", "what": f"{container} ran by the journal, no node saw it"})
    return {
        "checked": {
            "evidence_files": len(files),
            "containers": len(runs),
            "containers_as_granted": matched,
            "leases": len(journal.held),
            "gangs": gangs,
            "apps": len(journal.state.apps),
        },
        "unchecked": unchecked,
        "violations": violations,
    }


def _no_gpu_twice(runs: list[Run], violations: list[dict[str, Any]]) -> None:
    by_gpu: dict[Gpu, list[Run]] = {}
    for run in runs:
        for index in run.gpus:
            by_gpu.setdefault(Gpu(run.node, index), []).append(run)
    for gpu, users in by_gpu.items():
        for first, second in itertools.pairwise(users):
            if first.end_s is None or first.end_s > second.start_s:
                what = f"GPU {gpu} in {first.container} and {second.container}"
                violations.append({"kind": "GPU in two containers", "what": what, "when": second.start_s})


def _as_granted(runs: list[Run], journal: _Journal, violations: list[dict[str, Any]]) -> int:
    """Each container's GPUs were leased to its app all the time it ran."""
    good = 0
    for run in runs:
        app_id = app_of(run.container)
        problems = []
        for index in run.gpus:
            gpu = Gpu(run.node, index)
            ours = [h for h in journal.held if h.gpu == gpu and h.app_id == app_id]
            if not any(
                h.from_s - CLOCK_S <= run.start_s
                and (h.to_s is None or (run.end_s or run.start_s) <= h.to_s + OVERRUN_S)
                for h in _joined(ours)
            ):
                problems.append(str(gpu))
        if problems:
            what = f"{run.container} of {app_id} ran on {', '.join(problems)} without a lease"
            violations.append({"kind": "not as granted", "what": what, "when": run.start_s})
        else:
            good += 1
    return good


def _joined(held: list[Held]) -> list[Held]:
    """Leases of one GPU and app that follow each other at once are one."""
    result: list[Held] = []
    for h in sorted(held, key=lambda x: x.from_s):
        if result and result[-1].to_s is not None and h.from_s - result[-1].to_s < CLOCK_S:
            result[-1] = Held(h.gpu, h.app_id, h.grant_id, result[-1].from_s, h.to_s)
        else:
            result.append(h)
    return result


def app_of(container: str) -> str:
    """The application id inside a container id."""
    parts = container.split("_")
    numbers = parts[2:] if parts[1].startswith("e") else parts[1:]
    return f"application_{numbers[0]}_{numbers[1]}"


def _leases_end(journal: _Journal, violations: list[dict[str, Any]]) -> None:
    for h in journal.held:
        if h.to_s is None and h.app_id in journal.ended_apps:
            what = f"the lease of GPU {h.gpu} ({h.grant_id}) never ended though {h.app_id} did"
            violations.append({"kind": "lease lost", "what": what, "when": h.from_s})


def _gangs_whole(journal: _Journal, violations: list[dict[str, Any]]) -> int:
    """The containers of a job's launch start together, with as many GPUs as the job's other launches."""
    launches: list[dict[str, Any]] = []
    open_: dict[tuple[str, str], dict[str, Any]] = {}
    for time_s, fact, app_id in journal.launches:
        if not fact.job_id:
            continue
        key = (app_id, fact.job_id)
        gang = open_.get(key)
        if gang is None or time_s - gang["at_s"] > GANG_S or fact.gpu in gang["gpus"]:
            gang = open_[key] = {"key": key, "at_s": time_s, "gpus": set()}
            launches.append(gang)
        gang["gpus"].add(fact.gpu)
    sizes: dict[str, int] = {}
    for gang in launches:
        app_id = gang["key"][0]
        sizes[app_id] = max(sizes.get(app_id, 0), len(gang["gpus"]))
    for gang in launches:
        app_id, job_id = gang["key"]
        if len(gang["gpus"]) != sizes[app_id] and journal.state.apps[app_id].kind != "foreign":
            what = f"{app_id} {job_id} was launched on {len(gang['gpus'])} of {sizes[app_id]} GPUs"
            violations.append({"kind": "gang split", "what": what, "when": gang["at_s"]})
    return len(launches)
