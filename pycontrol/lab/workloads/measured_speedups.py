"""Speedup vectors from measured throughputs: Lambda's (RTX 3070 to 3090), Gavel's (K80 to V100), Sia's (T4 to A100).

Each file lies in the data folder (ISONOMY_DATA, or ../shared/data); none is shipped. A type's speed is that of one
GPU; the slowest type of a model has speedup 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pycontrol.lab.workloads.job_columns import load_json, number_of
from pycontrol.lab.workloads.trace_table import BadTrace, TraceTable

DATA = "ISONOMY_DATA"
Vectors = dict[str, dict[str, float]]
LAMBDA = "profiles/lambda/pytorch-train-throughput-fp16.csv"
LAMBDA_TYPES = ("RTX 3070", "RTX 3080", "RTX 3090")
GAVEL = "profiles/gavel_simulation_throughputs.json.gz"
GAVEL_TYPES = ("k80", "p100", "v100")
SIA = "profiles/sia"
SIA_TYPES = {"aws": "T4", "rtx": "RTX 2080 Ti", "dgx-ext": "A100"}
KEY = re.compile(r"\('(?P<model>[^']+)', (?P<gpus>\d+)\)")
"""Gavel's key of a job type: ('ResNet-18 (batch size 16)', 1)."""
ALONE = "null"


def data_folder(given: Path | None = None) -> Path:
    """Where the public data is, whether it is there or not."""
    return given or Path(os.environ.get(DATA, "../shared/data"))


def load(name: str, data: Path | None = None) -> Vectors:
    """Speedup vectors by model; BadTrace where the profile is not there or cannot be read."""
    relative, read = PROFILES[name]
    path = data_folder(data) / relative
    if not path.exists():
        raise BadTrace(f"{path}: is not there: set {DATA} to the folder that has it, or take profile=paper")
    found = {model: _relative(speeds) for model, speeds in sorted(read(path).items())}
    if not found:
        raise BadTrace(f"{path}: no model has a throughput on every type")
    return found


def _relative(speeds: Mapping[str, float]) -> dict[str, float]:
    """The slowest type is 1, and types are in the order of speed on the whole as their readers give them."""
    slowest = min(speeds.values())
    return {gpu_type: speed / slowest for gpu_type, speed in speeds.items()}


def lambda_speeds(path: Path) -> Vectors:
    """Lambda's table: a row a GPU model and count, a column a model, throughput (0: did not run)."""
    table = TraceTable.read(path)
    names, counts = table.texts("name_gpu"), table.numbers("num_gpu")
    rows = {gpu: [i for i, n in enumerate(names) if n.strip() == gpu and counts[i] == 1] for gpu in LAMBDA_TYPES}
    lacking = [gpu for gpu, found in rows.items() if not found]
    if lacking:
        raise BadTrace(f"{path}: column name_gpu: no row of one {', '.join(lacking)}")
    models = [name for name in table.names if name not in ("name_gpu", "num_gpu", "watt", "price", "ssd")]
    found: Vectors = {}
    for model in models:
        column = table.numbers(model, empty=0.0)
        speeds = {gpu: float(column[i[0]]) for gpu, i in rows.items()}
        if min(speeds.values()) > 0:
            found[model] = speeds
    return found


def gavel_throughputs(path: Path) -> dict[str, dict[tuple[str, int], float]]:
    """Steps per second alone by GPU type, then by (job type, GPUs)."""
    document = load_json(path)
    if not isinstance(document, dict):
        raise BadTrace(f"{path}: expected an object of GPU types")
    found: dict[str, dict[tuple[str, int], float]] = {}
    for gpu_type, jobs in document.items():
        if not isinstance(jobs, dict):
            raise BadTrace(f"{path}: {gpu_type}: expected an object of job types")
        found[gpu_type] = dict(_gavel_row(f"{path}: {gpu_type}: {key}", key, value) for key, value in jobs.items())
    return found


def _gavel_row(where: str, key: str, value: Any) -> tuple[tuple[str, int], float]:
    match = KEY.fullmatch(key)
    if match is None or not isinstance(value, dict) or ALONE not in value:
        raise BadTrace(f"{where}: expected a key such as ('ResNet-18 (batch size 16)', 1) with its \"{ALONE}\" speed")
    return (match["model"], int(match["gpus"])), number_of(value[ALONE], f"{where}: {ALONE}", "steps per second")


def gavel_speeds(path: Path) -> Vectors:
    """Steps per second of one GPU of each of Gavel's three types."""
    steps = gavel_throughputs(path)
    lacking = [t for t in GAVEL_TYPES if t not in steps]
    if lacking:
        raise BadTrace(f"{path}: no GPU type {', '.join(lacking)}; it has {', '.join(steps)}")
    one = [model for model, gpus in steps[GAVEL_TYPES[0]] if gpus == 1]
    found = {m: {t: steps[t].get((m, 1), 0.0) for t in GAVEL_TYPES} for m in one}
    return {m: speeds for m, speeds in found.items() if min(speeds.values()) > 0}


def sia_speeds(path: Path) -> Vectors:
    """Samples per second of one GPU at the best batch size measured, for models measured on all three types."""
    found: Vectors = {}
    for folder in sorted(p for p in path.iterdir() if p.is_dir()):
        files = {gpu: folder / f"placements-{short}.csv" for short, gpu in SIA_TYPES.items()}
        if all(file.exists() for file in files.values()):
            speeds = {gpu: _sia_best(file) for gpu, file in files.items()}
            if min(speeds.values()) > 0:
                found[folder.name] = speeds
    return found


def _sia_best(path: Path) -> float:
    table = TraceTable.read(path)
    step_s, batch, placement = table.numbers("step_time"), table.numbers("local_bsz"), table.texts("placement")
    rows = zip(batch.tolist(), step_s.tolist(), placement, strict=True)
    return max((b / s for b, s, p in rows if p.strip() == "1" and s > 0), default=0.0)


PROFILES: dict[str, tuple[str, Callable[[Path], Vectors]]] = {
    "lambda": (LAMBDA, lambda_speeds),
    "gavel": (GAVEL, gavel_speeds),
    "sia": (SIA, sia_speeds),
}
