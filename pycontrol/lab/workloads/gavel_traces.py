"""Importer of Gavel's traces and Shockwave's variant: tab-separated lines without a header.

Gavel: job type, command, [directory,] argument for steps, needs data, total steps, then either arrival and scale
factor (the traces of Philly) or scale factor, priority, SLO and arrival. Shockwave adds its mode before the priority
and the run time in seconds after the SLO. Scale factor is the job's GPUs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pycontrol.lab.workloads.building import Import, Imported
from pycontrol.lab.workloads.imports import workload_of
from pycontrol.lab.workloads.job_columns import Jobs
from pycontrol.lab.workloads.measured_speedups import DATA, GAVEL, GAVEL_TYPES, Vectors, data_folder, gavel_throughputs
from pycontrol.lab.workloads.trace_table import BadTrace, Floats, TraceTable, head

TYPE, STEPS, GPUS, ARRIVAL, RUN_S = "job_type", "total_steps", "scale_factor", "arrival_s", "run_time_s"
SHAPES = {
    7: (TYPE, "command", "steps_arg", "needs_data", STEPS, ARRIVAL, GPUS),
    10: (TYPE, "command", "directory", "steps_arg", "needs_data", STEPS, GPUS, "priority", "slo", ARRIVAL),
    12: (
        TYPE,
        "command",
        "directory",
        "steps_arg",
        "needs_data",
        STEPS,
        GPUS,
        "mode",
        "priority",
        "slo",
        RUN_S,
        ARRIVAL,
    ),
}
"""The column names, by the number of columns."""


def is_gavel(text: str) -> bool:
    """Whether a file that begins with this text has this format."""
    return len(text.partition("\n")[0].rstrip("\r").split("\t")) in SHAPES


def gavel(path: Path, o: Import, seed: int) -> Imported:
    """Jobs with their steps turned into GPU-seconds on the slowest of K80, P100 and V100 by Gavel's throughputs.

    A trace with run times needs none: its jobs keep those, and have no speedups. Jobs whose type and GPU count were
    not measured are left out and counted.
    """
    first = head(path, 1 << 16).partition("\n")[0].rstrip("\r").split("\t")
    names = SHAPES.get(len(first))
    if names is None:
        raise BadTrace(f"{path}: line 1: has {len(first)} columns, expected 7, 10 or 12 separated by tabs")
    t = TraceTable.read(path, names, "\t", o.lenient)
    models, gpus = t.texts(TYPE), t.counts(GPUS)
    at_s = t.numbers(ARRIVAL)
    ids = [f"job-{line}" for line in t.lines.tolist()]
    if RUN_S in t.names:
        jobs = Jobs(ids, at_s, gpus, t.numbers(RUN_S) * gpus, models=models)
        return workload_of("gavel", path, jobs, t.good, t.skipped)
    steps = t.numbers(STEPS)
    work, vectors = _work(o, models, gpus, steps)
    lacking = t.good & (gpus >= 1) & (steps > 0) & ~(work > 0)
    t.skipped.drop("of types and GPU counts without a throughput", int(lacking.sum()))
    jobs = Jobs(ids, at_s, gpus, work, models=models, speedups=vectors)
    return workload_of("gavel", path, jobs, t.good & ~lacking, t.skipped)


def _work(o: Import, models: tuple[str, ...], gpus: Floats, steps: Floats) -> tuple[Floats, Vectors]:
    """(GPU-seconds on the slowest type, 0 without a known throughput; speedups by model for one GPU)."""
    path = data_folder(Path(o.data) if o.data else None) / GAVEL
    if not path.exists():
        raise BadTrace(f"{path}: is not there, and this trace counts steps: set {DATA} to the folder that has it")
    rates = gavel_throughputs(path)
    work = np.zeros(len(models))
    vectors: Vectors = {}
    for i, key in enumerate(zip(models, gpus.astype(int).tolist(), strict=True)):
        speeds = {t: rates[t].get(key, 0.0) for t in GAVEL_TYPES}
        slowest = min(speeds.values())
        if slowest > 0:
            work[i] = steps[i] / slowest * key[1]
            vectors.setdefault(key[0], {t: v / slowest for t, v in speeds.items()})
    return work, vectors
