"""Isonomy's own format of a workload: CSV with an app a row, written and read back without loss.

The first line names the workload; then a header. `phases`: serial GPU-seconds of the jobs, jobs separated by spaces and
phases by |. `slowdown`: S by scope, separated by spaces. `speedups`: TYPE=SPEED, separated by ; (empty: all alike).
A workload with elastic jobs has two columns more, `job_gpus_max` and `scaling`; one with node labels has `partition`.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from pycontrol.lab.workloads.building import NO_SPEEDUPS, Import, Imported
from pycontrol.lab.workloads.trace_table import NOT_TEXT, BadTrace, TraceTable, open_text
from pycontrol.model.topology import Scope
from pycontrol.simulation.trace_apps import TraceApp, Workload

MARK = "# isonomy workload "
_ASKED = ("app_id", "submitted_s", "gang_gpus", "queue", "user", "model", "scope")
COLUMNS = (*_ASKED, "slowdown", "speedups", "loss_decay", "phases")
ELASTIC, LABEL = ("job_gpus_max", "scaling"), "partition"
SCOPES = {scope.name.lower(): scope for scope in Scope}


def write(workload: Workload, path: Path) -> None:
    """Writes the file; OSError where it cannot."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(MARK + json.dumps({"name": workload.name, "source": workload.source}) + "\n")
        rows = csv.writer(file, lineterminator="\n")
        elastic = any(a.elastic for a in workload.apps)
        label = [LABEL] if any(a.partition is not None for a in workload.apps) else []
        rows.writerow((*COLUMNS, *(ELASTIC if elastic else ()), *label))
        for a in workload.apps:
            more = (a.job_gpus_max, repr(a.scaling)) if elastic else ()
            rows.writerow((*_row(a), *more, *(a.partition for _ in label)))


def _row(a: TraceApp) -> tuple[object, ...]:
    speedups = ";".join(f"{t}={v!r}" for t, v in a.speedups.items())
    phases = "|".join(" ".join(map(repr, jobs)) for jobs in a.phases)
    slowdown = " ".join(map(repr, a.slowdown))
    asked = (a.app_id, repr(a.submitted_s), a.gang_gpus, a.queue, a.user, a.model, a.scope.name.lower())
    return *asked, slowdown, speedups, repr(a.loss_decay), phases


def read(path: Path, o: Import, seed: int) -> Imported:
    """The workload that was written there."""
    try:
        with open_text(path) as file:
            first = file.readline()
        about = json.loads(first.removeprefix(MARK))
        name, source = str(about["name"]), str(about["source"])
    except (ValueError, KeyError, TypeError, RecursionError, *NOT_TEXT):
        raise BadTrace(f'{path}: line 1: expected {MARK}{{"name": ..., "source": ...}}') from None
    t = TraceTable.read(path, lenient=o.lenient, comment=MARK)
    t.need(*COLUMNS)
    at_s, gangs, decay = t.numbers("submitted_s"), t.counts("gang_gpus"), t.numbers("loss_decay")
    ids, queues, users, models = (t.texts(c) for c in ("app_id", "queue", "user", "model"))
    scopes = t.values("scope", SCOPES.__getitem__, f"one of {', '.join(SCOPES)}")
    slowdowns = t.values("slowdown", _slowdown, "three numbers of at least 1")
    speedups = t.values("speedups", _speedups, "TYPE=SPEED; ... with speeds above 0")
    phases = t.values("phases", _phases, "GPU-seconds of at least 0, jobs separated by spaces, phases by |")
    elastic = all(name in t.names for name in ELASTIC)
    most = t.counts("job_gpus_max").tolist() if elastic else [0.0] * len(ids)
    scaling = t.numbers("scaling").tolist() if elastic else [1.0] * len(ids)
    labels = t.texts(LABEL, "")
    apps = []
    t.skipped.drop("without GPUs", int((t.good & (gangs < 1)).sum()))
    for i, good in enumerate((t.good & (gangs >= 1)).tolist()):
        slowdown, vector, work = slowdowns[i], speedups[i], phases[i]
        if good and slowdown is not None and vector is not None and work is not None:
            if not any(map(any, work)):
                t.skipped.drop("without work", 1)
                continue
            asked = ids[i], float(at_s[i]), int(gangs[i]), work, queues[i], users[i], models[i]
            scope, curve, width = scopes[i] or Scope.CLUSTER, float(decay[i]), int(most[i])
            more = False, width, float(scaling[i]), False, labels[i] or None
            apps.append(TraceApp(*asked, slowdown, scope, vector, curve, *more))
    return Imported(Workload(name, tuple(sorted(apps, key=lambda a: a.submitted_s)), source), t.skipped)


def _slowdown(text: str) -> tuple[float, float, float]:
    machine, rack, anywhere = (float(s) for s in text.split(" "))
    if not min(machine, rack, anywhere) >= 1:
        raise ValueError
    return machine, rack, anywhere


def _speedups(text: str) -> dict[str, float]:
    if not text:
        return dict(NO_SPEEDUPS)
    found = {t: float(v) for t, _, v in (part.rpartition("=") for part in text.split(";"))}
    if not all(t and 0 < v < float("inf") for t, v in found.items()):
        raise ValueError
    return found


def _phases(text: str) -> tuple[tuple[float, ...], ...]:
    found = tuple(tuple(float(w) for w in jobs.split(" ") if w) for jobs in text.split("|"))
    if not all(0 <= w < float("inf") for jobs in found for w in jobs):
        raise ValueError
    return found
