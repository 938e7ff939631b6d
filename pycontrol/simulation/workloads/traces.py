"""Public traces as workloads; the format is told by the header. All times in seconds from the first arrival."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.simulation.apps import TraceApp, Workload
from pycontrol.simulation.workloads.rows import BadTrace, Row, head, opened, rows

OWN = ("app_id", "submitted_s", "gang_gpus", "phases", "queue", "user", "model", "slowdown")
GAVEL = {
    7: ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_s", "scale_factor"),
    10: ("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor",
         "priority_weight", "slo", "arrival_s"),
}  # fmt: skip
"""Columns of Gavel's two kinds of trace, by their number."""
PHILLY_TIME = "%Y-%m-%d %H:%M:%S"
Jobs = Iterable[TraceApp | None]
"""Apps in any order; None for a row that says of itself that it never used a GPU."""


def read(
    path: Path, limit: int | None = None, queues: str = "", faster: float = 1.0, days: float | None = None
) -> Workload:
    """A trace file as a workload.

    `limit`: only the first so many apps; `queues`: only these, separated by +; `faster`: arrivals come so many times
    as fast; `days`: only those that arrive within so many days of the first. BadTrace says what is wrong where.
    """
    if not faster > 0:
        raise ValueError(f"faster: must be more than 0 (got {faster})")
    if limit is not None and int(limit) < 1:
        raise ValueError(f"limit: must be at least 1 (got {limit})")
    kind, importer = _importer(path)
    found, skipped = [], 0
    for app in importer(path):
        if app is None:
            skipped += 1
        else:
            found.append(app)
    wanted = set(queues.split("+")) if queues else None
    kept = sorted((a for a in found if wanted is None or a.queue in wanted), key=lambda a: a.submitted_s)
    if wanted and not kept:
        raise ValueError(f"queues: no app of {path} is in {queues}; it has {_some({a.queue for a in found})}")
    first_s = kept[0].submitted_s if kept else 0.0
    made = [dataclasses.replace(a, submitted_s=(a.submitted_s - first_s) / float(faster)) for a in kept]
    if days is not None:
        made = [a for a in made if a.submitted_s * float(faster) <= float(days) * 86400]
    made = made[: int(limit)] if limit is not None else made
    if not made:
        raise BadTrace(f"{path}: there is no app in it ({skipped} rows without GPU time)")
    said = [f"{path.name} ({kind})", f"{len(made)} apps"]
    said += [f"{skipped} rows without GPU time left out"] if skipped else []
    said += [f"arrivals {faster:g} times as fast"] if faster != 1 else []
    return Workload(path.name.partition(".")[0], tuple(made), ", ".join(said))


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:8]) + (" ..." if len(ordered) > 8 else "")


def _importer(path: Path) -> tuple[str, Callable[[Path], Jobs]]:
    first = head(path)
    if first.startswith(("[", "{")):
        return "Philly JSON", philly_json
    columns = {c.strip() for c in first.split(",")}
    for kind, needed, importer in FORMATS:
        if needed <= columns:
            return kind, importer
    if len(first.split("\t")) in GAVEL:
        return "Gavel", gavel
    known = "; ".join(f"{kind}: {', '.join(sorted(needed))}" for kind, needed, _ in FORMATS)
    raise BadTrace(f"{path}, line 1: no known trace has these columns. Known: {known}; Gavel: tab-separated")


def single(
    row_id: str, at_s: float, gpus: int, run_s: float, queue: str = "", user: str = "", model: str = ""
) -> TraceApp | None:
    """A job as an app of its own; None if it used no GPU."""
    if gpus < 1 or run_s <= 0:
        return None
    return TraceApp(row_id, at_s, gpus, ((run_s * gpus,),), queue=queue or "root.default", user=user, model=model)


# ---- formats


def own(path: Path) -> Iterator[TraceApp]:
    """What `write` writes."""
    for r in rows(path):
        yield TraceApp(
            r.text("app_id"), r.number("submitted_s"), r.count("gang_gpus", 1), _phases(r), r.text("queue"),
            r.text("user"), r.text("model"), _slowdown(r),
        )  # fmt: skip


def _phases(r: Row) -> tuple[tuple[float, ...], ...]:
    try:
        phases = tuple(tuple(float(x) for x in phase.split(";")) for phase in r.text("phases").split("|"))
    except ValueError:
        phases = ()
    if not phases or not all(x > 0 for phase in phases for x in phase):
        raise r.wrong("phases", "GPU-seconds of jobs, separated by ';', phases by '|'")
    return phases


def _slowdown(r: Row) -> tuple[float, float, float]:
    text = r.text("slowdown")
    if not text:
        return SLOWDOWN_PRIOR
    try:
        a, b, c = (float(x) for x in text.split(";"))
    except ValueError:
        raise r.wrong("slowdown", "three numbers separated by ';'") from None
    if not 1 <= a <= b <= c:
        raise r.wrong("slowdown", "three numbers of at least 1, not falling")
    return a, b, c


def write(workload: Workload, path: Path) -> None:
    """Writes a workload as CSV that `read` reads back."""
    import csv

    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(OWN)
        for a in workload.apps:
            phases = "|".join(";".join(f"{x:.10g}" for x in phase) for phase in a.phases)
            slowdown = ";".join(f"{x:g}" for x in a.slowdown)
            out.writerow([a.app_id, f"{a.submitted_s:.6f}", a.gang_gpus, phases, a.queue, a.user, a.model, slowdown])


def philly_reconstructed(path: Path) -> Jobs:
    """philly_jobs_reconstructed.csv."""
    for r in rows(path):
        yield single(
            r.text("job_id"), r.number("submit_elapsed_s"), r.count("num_gpus"), r.number("exec_duration_s"),
            r.text("vc"),
        )  # fmt: skip


def themis_apps(path: Path) -> Jobs:
    """themis_w1_apps_*.csv: jobs that came in one burst, as the apps that they probably were."""
    apps: dict[str, list[Row]] = {}
    for r in rows(path):
        apps.setdefault(r.text("app_id"), []).append(r)
    for app_id, members in apps.items():
        gpus = members[0].count("num_gpus", 1)
        work = tuple(w for r in members if (w := r.number("gpu_seconds")) > 0)
        at_s = min(r.number("submit_elapsed_s") for r in members)
        yield TraceApp(app_id, at_s, gpus, (work,), queue=members[0].text("vc")) if work else None


def philly_json(path: Path) -> Jobs:
    """cluster_job_log of the original Philly trace: attempts with GPUs by machine."""
    with opened(path) as file:
        try:
            jobs = json.load(file)
        except json.JSONDecodeError as error:
            raise BadTrace(f"{path}, line {error.lineno}: {error.msg}, expected the JSON of cluster_job_log") from error
    if not isinstance(jobs, list):
        raise BadTrace(f"{path}: expected a list of jobs")
    for k, job in enumerate(jobs):
        yield _philly_job(path, k, job)


def _philly_job(path: Path, k: int, job: Any) -> TraceApp | None:
    try:
        submitted = _philly_time(job["submitted_time"])
        gpus, run_s = 0, 0.0
        for attempt in job["attempts"]:
            if attempt.get("start_time") and attempt.get("end_time"):
                gpus = max(gpus, sum(len(d["gpus"]) for d in attempt["detail"]))
                run_s += _philly_time(attempt["end_time"]) - _philly_time(attempt["start_time"])
        return single(job["jobid"], submitted, gpus, run_s, job["vc"], job.get("user", ""))
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"{path}, job {k} ({_id(job)}): {type(error).__name__} {error}") from error


def _id(job: Any) -> str:
    return str(job.get("jobid", "?")) if isinstance(job, Mapping) else "not an object"


def _philly_time(text: str) -> float:
    return dt.datetime.strptime(text.removesuffix(" PST").removesuffix(" PDT"), PHILLY_TIME).timestamp()


def gavel(path: Path) -> Jobs:
    """Gavel's .trace files. They give steps, no times: one step is taken as a tenth of a second on one GPU."""
    columns = list(GAVEL[len(head(path).split("\t"))])
    for k, r in enumerate(rows(path, "\t", columns)):
        gpus = r.count("scale_factor", 1)
        model = r.text("job_type").partition(" (")[0]
        yield single(f"gavel-{k:05d}", r.number("arrival_s"), gpus, r.number("total_steps") / 10, model=model)


def tiresias(path: Path) -> Jobs:
    """Tiresias' job files: job_id, num_gpu, submit_time, iterations, model_name, duration."""
    for r in rows(path):
        yield single(
            f"tiresias-{r.text('job_id')}", r.number("submit_time"), r.count("num_gpu"), r.number("duration"),
            model=r.text("model_name"),
        )  # fmt: skip


def helios(path: Path) -> Jobs:
    """Helios' cluster_log.csv."""
    for r in rows(path):
        try:
            at = dt.datetime.fromisoformat(r.text("submit_time")).replace(tzinfo=dt.UTC).timestamp()
        except ValueError:
            raise r.wrong("submit_time", "a date and time") from None
        yield single(
            r.text("job_id"), at, r.count("gpu_num"), r.number("duration"), r.text("vc"), r.values.get("user", "")
        )


def alibaba(path: Path) -> Jobs:
    """Alibaba's openb pods: whole GPUs only; shares of a GPU are left out. A time of 0 or none: it never ran."""
    for r in rows(path):
        ended, began = r.values.get("deletion_time") or "0", r.values.get("scheduled_time") or "0"
        if not began.strip() or float(began) <= 0 or float(ended) <= 0:
            yield None
            continue
        whole = r.count("num_gpu") if r.number("gpu_milli") >= 1000 else 0
        run_s = max(0.0, r.number("deletion_time") - r.number("scheduled_time"))
        yield single(r.text("name"), r.number("creation_time"), whole, run_s, r.text("qos"))


def pollux(path: Path) -> Jobs:
    """Pollux' and Sia's workloads give no durations: they are refused rather than guessed."""
    raise BadTrace(f"{path}: Pollux' and Sia's traces hold no durations; take another trace")
    yield None


FORMATS: tuple[tuple[str, frozenset[str], Callable[[Path], Jobs]], ...] = (
    ("isonomy", frozenset(OWN), own),
    ("Themis apps", frozenset({"app_id", "job_id", "vc", "submit_elapsed_s", "num_gpus", "gpu_seconds"}), themis_apps),
    ("Philly", frozenset({"job_id", "vc", "submit_elapsed_s", "num_gpus", "exec_duration_s"}), philly_reconstructed),
    ("Helios", frozenset({"job_id", "vc", "gpu_num", "submit_time", "duration"}), helios),
    ("Alibaba", frozenset({"name", "num_gpu", "gpu_milli", "creation_time", "scheduled_time"}), alibaba),
    ("Tiresias", frozenset({"job_id", "num_gpu", "submit_time", "duration", "model_name"}), tiresias),
    ("Pollux", frozenset({"name", "time", "application", "num_replicas", "batch_size"}), pollux),
)
"""Name, the columns that tell it, and its importer; the first that fits is taken."""
