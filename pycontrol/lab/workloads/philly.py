"""Importer of the original Philly trace: cluster_job_log, a JSON list of jobs (msr-fiddle/philly-traces)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pycontrol.lab.workloads.building import Import, Imported
from pycontrol.lab.workloads.imports import workload_of
from pycontrol.lab.workloads.job_columns import Jobs, load_json, seconds_of
from pycontrol.lab.workloads.trace_table import (
    BAD_ROW,
    SHOWN_BAD,
    BadTrace,
    Skipped,
)

SUMMER_ENDS_S = seconds_of("2017-11-05 02:00:00")
"""The trace has Pacific local time: from here on an hour is added (the hour that is there twice is the first one)."""
NO_TIMES = (None, "", "None")
EXPECTED_TIME = "a time such as '2017-10-09 07:01:55'"


def philly(path: Path, o: Import, seed: int) -> Imported:
    """Jobs with the GPUs of their largest attempt and the GPU time of all attempts.

    Left out and counted: jobs without GPUs, jobs that never ran, and attempts without both times.
    """
    document = load_json(path)
    if not isinstance(document, list):
        raise BadTrace(f"{path}: expected a JSON list of jobs, is {type(document).__name__}")
    skipped = Skipped()
    rows: list[tuple[str, str, str, str, float, int, float]] = []
    for i, job in enumerate(document):
        where = f"{path}: job {i + 1}"
        try:
            rows.append(_job(job, where, skipped))
        except BadTrace as e:
            if not o.lenient:
                raise BadTrace(f"{e} (bad_rows=skip leaves such jobs out)") from None
            skipped.drop(BAD_ROW, 1)
            skipped.bad += [str(e)] if len(skipped.bad) < SHOWN_BAD else []
    if o.status:
        before = len(rows)
        rows = [r for r in rows if r[3] in o.status]
        skipped.drop("of another status", before - len(rows))
    ids, queues, users, _, at_s, gpus, work = zip(*rows, strict=True) if rows else ((),) * 7
    jobs = Jobs(ids, np.array(at_s, float), np.array(gpus, float), np.array(work, float), queues, users)
    return workload_of("philly", path, jobs, np.ones(len(rows), dtype=bool), skipped)


def _job(job: Any, where: str, skipped: Skipped) -> tuple[str, str, str, str, float, int, float]:
    """Id, virtual cluster, user, status, arrival, GPUs, GPU-seconds."""
    if not isinstance(job, dict):
        raise BadTrace(f"{where}: expected an object, is {type(job).__name__}")
    name = _text(job, "jobid", where)
    where = f"{where} ({name})"
    at_s = _time(job.get("submitted_time"), f"{where}, field submitted_time")
    attempts = job.get("attempts")
    if not isinstance(attempts, list):
        raise BadTrace(f"{where}, field attempts: {attempts!r}, expected a list")
    gpus, work = 0, 0.0
    for k, attempt in enumerate(attempts):
        here = f"{where}, field attempts[{k}]"
        if not isinstance(attempt, dict):
            raise BadTrace(f"{here}: expected an object, is {type(attempt).__name__}")
        count = _gpus(attempt.get("detail"), f"{here}.detail")
        gpus = max(gpus, count)
        begin, end = attempt.get("start_time"), attempt.get("end_time")
        if begin in NO_TIMES or end in NO_TIMES:
            skipped.parts["attempts without both times"] += 1
            continue
        work += count * max(0.0, _time(end, f"{here}.end_time") - _time(begin, f"{here}.start_time"))
    return name, _text(job, "vc", where), str(job.get("user", "")), str(job.get("status", "")), at_s, gpus, work


def _text(job: dict[str, Any], field: str, where: str) -> str:
    value = job.get(field)
    if not isinstance(value, str) or not value:
        raise BadTrace(f"{where}, field {field}: {value!r}, expected a text")
    return value


def _time(value: Any, where: str) -> float:
    try:
        at_s = seconds_of(value)
    except (ValueError, TypeError, AttributeError):
        raise BadTrace(f"{where}: {value!r}, expected {EXPECTED_TIME}") from None
    return at_s + 3600 * (at_s >= SUMMER_ENDS_S)


def _gpus(detail: Any, where: str) -> int:
    try:
        return sum(len(machine["gpus"]) for machine in detail or ())
    except (KeyError, TypeError):
        raise BadTrace(f"{where}: expected a list of machines, each with a list `gpus`") from None
