"""Importers of public job traces in tables: Philly's derivatives, Themis-like apps, Tiresias, Helios, Alibaba, Sia.

Every job becomes an app of one gang that ran at S = 1, so its serial GPU-seconds are run time x GPUs.
A malformed row raises an error with file, line and column, or is skipped and counted.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from pycontrol.lab.workloads.building import NO_SPEEDUPS, Import, Imported, Reader, queue_of
from pycontrol.lab.workloads.job_columns import Jobs, times
from pycontrol.lab.workloads.trace_table import Mask, Skipped, TraceTable, head
from pycontrol.simulation.trace_apps import TraceApp, Workload


def workload_of(name: str, path: Path, jobs: Jobs, good: Mask, skipped: Skipped) -> Imported:
    """A workload of single jobs."""
    return Imported(Workload(name, jobs.apps(good, skipped), str(path)), skipped)


def with_status(texts: tuple[str, ...], o: Import, good: Mask, skipped: Skipped) -> Mask:
    """`good` limited to jobs with the final states in the options; counts the others as skipped."""
    if not o.status:
        return good
    wanted = good & np.isin(np.array(texts), o.status)
    skipped.drop("of another status", int((good & ~wanted).sum()))
    return wanted


def philly_jobs(path: Path, o: Import, seed: int) -> Imported:
    """philly_jobs_reconstructed: job_id, vc, submit_elapsed_s, num_gpus, gpu_seconds."""
    t = TraceTable.read(path, lenient=o.lenient)
    work, gpus = t.numbers("gpu_seconds"), t.counts("num_gpus")
    jobs = Jobs(t.texts("job_id"), t.numbers("submit_elapsed_s"), gpus, work, t.texts("vc"))
    return workload_of("philly", path, jobs, t.good, t.skipped)


def philly_subset(path: Path, o: Import, seed: int) -> Imported:
    """The subset of Philly's jobs that Pollux used: timestamp, num_gpus, gpu_time, cluster. Rows have no ids."""
    t = TraceTable.read(path, lenient=o.lenient)
    ids = [f"job-{line}" for line in t.lines.tolist()]
    jobs = Jobs(ids, times(t, "timestamp"), t.counts("num_gpus"), t.numbers("gpu_time"), t.texts("cluster"))
    return workload_of("philly-subset", path, jobs, t.good, t.skipped)


def pcs(path: Path, o: Import, seed: int) -> Imported:
    """One virtual cluster of Philly as PCS ships it: service in GPU-seconds, and num_jobs is the job's GPUs."""
    t = TraceTable.read(path, lenient=o.lenient)
    jobs = Jobs(
        t.texts("app_id"),
        t.numbers("submit_time"),
        t.counts("num_jobs"),
        t.numbers("service"),
        models=t.texts("model_name"),
    )
    return workload_of("pcs", path, jobs, t.good, t.skipped)


def themis_apps(path: Path, o: Import, seed: int) -> Imported:
    """Jobs grouped into apps: app_id, vc, submit_elapsed_s, num_gpus, gpu_seconds.

    An app arrives with its first job; a job's gang is the app's commonest, its GPU time kept.
    """
    t = TraceTable.read(path, lenient=o.lenient)
    ids, queues = t.texts("app_id"), t.texts("vc")
    at_s, gpus, work = t.numbers("submit_elapsed_s"), t.counts("num_gpus"), t.numbers("gpu_seconds")
    none, idle = t.good & (gpus < 1), t.good & (gpus >= 1) & ~(work > 0)
    t.skipped.drop("without GPUs", int(none.sum()))
    t.skipped.drop("without work", int(idle.sum()))
    rows: dict[str, list[int]] = {}
    for i in np.flatnonzero(t.good & ~none & ~idle).tolist():
        rows.setdefault(ids[i], []).append(i)
    apps = []
    for name, of in rows.items():
        sizes, counts = np.unique(gpus[of].astype(int), return_counts=True)
        phase = tuple(work[of].tolist())
        app = TraceApp(
            name,
            float(at_s[of].min()),
            int(sizes[counts.argmax()]),
            (phase,),
            queue_of(queues[of[0]]),
            speedups=NO_SPEEDUPS,
        )
        apps.append(app)
    return Imported(Workload("themis-apps", tuple(sorted(apps, key=lambda a: a.submitted_s)), str(path)), t.skipped)


def tiresias(path: Path, o: Import, seed: int) -> Imported:
    """Tiresias' format and its variants: job_id, num_gpu, submit_time, duration, model_name, and optionally user.

    Muri's variant, known by its column iteration_time, has milliseconds.
    """
    t = TraceTable.read(path, lenient=o.lenient)
    scale = 1e-3 if "iteration_time" in t.names else 1.0
    gpus = t.counts("num_gpu")
    # ElasticFlow's variant: `duration` and `real_duration` are the same
    jobs = Jobs(
        t.texts("job_id"),
        t.numbers("submit_time") * scale,
        gpus,
        t.numbers("duration") * scale * gpus,
        users=t.texts("user", ""),
        models=t.texts("model_name", ""),
    )
    return workload_of("tiresias", path, jobs, t.good, t.skipped)


def helios(path: Path, o: Import, seed: int) -> Imported:
    """Helios' cluster_log.csv: job_id, user, vc, gpu_num, submit_time, duration, state."""
    t = TraceTable.read(path, lenient=o.lenient)
    gpus = t.counts("gpu_num", empty=0.0)
    jobs = Jobs(
        t.texts("job_id"),
        times(t, "submit_time"),
        gpus,
        t.numbers("duration") * gpus,
        t.texts("vc"),
        t.texts("user", ""),
    )
    return workload_of("helios", path, jobs, with_status(t.texts("state", ""), o, t.good, t.skipped), t.skipped)


def openb(path: Path, o: Import, seed: int) -> Imported:
    """Alibaba's 2023 pods: name, num_gpu, gpu_milli, qos, creation_time, deletion_time, scheduled_time.

    A pod runs from its scheduling to its deletion. A share of a GPU counts as a whole one, since a lease is one GPU.
    The quality of service is the queue.
    """
    t = TraceTable.read(path, lenient=o.lenient)
    created, deleted = t.numbers("creation_time"), t.numbers("deletion_time", empty=math.nan)
    begun = t.numbers("scheduled_time", empty=math.nan)
    gpus = t.counts("num_gpu")
    never = t.good & (gpus >= 1) & ~np.isfinite(deleted - begun)
    t.skipped.drop("never ran", int(never.sum()))
    run_s = np.nan_to_num(deleted - begun)
    jobs = Jobs(t.texts("name"), created, gpus, run_s * gpus, t.texts("qos"))
    good = with_status(t.texts("pod_phase", ""), o, t.good & ~never, t.skipped)
    return workload_of("openb", path, jobs, good, t.skipped)


PAI = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)


def pai(path: Path, o: Import, seed: int) -> Imported:
    """Alibaba's 2020 pai_task_table: no header line, plan_gpu in percent of a GPU for each of inst_num instances.

    A task is an app; its GPUs are rounded up to whole ones; it arrives when it started, for the table does not say when
    it was submitted; the GPU type is the queue.
    """
    names = () if head(path, 64).startswith(PAI[0]) else PAI
    t = TraceTable.read(path, names, lenient=o.lenient)
    begun, ended = t.numbers("start_time", empty=math.nan), t.numbers("end_time", empty=math.nan)
    percent, count = t.numbers("plan_gpu", empty=0.0), t.counts("inst_num", empty=0.0)
    gpus = np.ceil(percent * count / 100)
    never = t.good & (gpus >= 1) & ~np.isfinite(ended - begun)
    t.skipped.drop("never ran or never ended", int(never.sum()))
    run_s = np.nan_to_num(ended - begun)
    ids = [f"{j}/{k}" for j, k in zip(t.texts("job_name"), t.texts("task_name"), strict=True)]
    types = [name or "default" for name in t.texts("gpu_type")]
    jobs = Jobs(ids, np.nan_to_num(begun), gpus, run_s * gpus, types)
    return workload_of("pai", path, jobs, with_status(t.texts("status"), o, t.good & ~never, t.skipped), t.skipped)


POLLUX_GPU_H = {
    "cifar10": (0.1, 1.0),
    "ncf": (0.1, 1.0),
    "bert": (1.0, 10.0),
    "deepspeech2": (1.0, 10.0),
    "yolov3": (10.0, 100.0),
    "imagenet": (100.0, 1000.0),
    "gpt_pmp": (100.0, 1000.0),
}
"""GPU-hours of an application's class: small, medium, large, extra large (Pollux, OSDI '21, section 5.1)."""


def pollux(path: Path, o: Import, seed: int) -> Imported:
    """Pollux' and Sia's workloads: name, time, application, num_replicas.

    They name no run time (it follows from adaptive batches): GPU time is drawn log-uniformly in the class of the
    application.
    """
    t = TraceTable.read(path, lenient=o.lenient)
    models, rng = t.texts("application"), np.random.default_rng([seed, 7])
    low, high = np.log(np.array([POLLUX_GPU_H.get(m, (math.nan, math.nan)) for m in models], float).reshape(-1, 2)).T
    unknown = t.good & ~np.isfinite(low)
    t.skipped.drop("of unknown applications", int(unknown.sum()))
    work = 3600 * np.exp(low + (high - low) * rng.random(len(t)))
    jobs = Jobs(t.texts("name"), t.numbers("time"), t.counts("num_replicas"), np.nan_to_num(work), models=models)
    return workload_of("pollux", path, jobs, t.good & ~unknown, t.skipped)


CSV_FORMATS: dict[str, tuple[frozenset[str], Reader]] = {
    "philly-jobs": (frozenset({"job_id", "vc", "submit_elapsed_s", "num_gpus", "gpu_seconds", "source"}), philly_jobs),
    "themis-apps": (frozenset({"app_id", "vc", "submit_elapsed_s", "num_gpus", "gpu_seconds"}), themis_apps),
    "philly-subset": (frozenset({"timestamp", "num_gpus", "gpu_time", "cluster"}), philly_subset),
    "pcs": (frozenset({"app_id", "submit_time", "service", "num_jobs", "model_name"}), pcs),
    "helios": (frozenset({"job_id", "vc", "gpu_num", "submit_time", "duration"}), helios),
    "openb": (frozenset({"name", "num_gpu", "qos", "creation_time", "deletion_time", "scheduled_time"}), openb),
    "pollux": (frozenset({"name", "time", "application", "num_replicas"}), pollux),
    "tiresias": (frozenset({"job_id", "num_gpu", "submit_time", "duration"}), tiresias),
}
"""By name: the columns that a file of the format has, and its reader."""
