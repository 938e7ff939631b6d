"""The result files next to an app's model: its trials and launches as CSV, and learning curves as SVG."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pycontrol.fairness.curves import add
from submarine_patch.agent.agent_state import SavedState
from submarine_patch.agent.jobs import Job

POINTS, POINTS_OF_MANY, MANY = 64, 8, 100
"""Points kept per curve; fewer if there are more than MANY jobs, because curves are part of the saved state."""
LAUNCHES_KEPT = 200
WIDTH, HEIGHT, MARGIN = 720, 400, 48
CURVES_DRAWN = 50


def seen(s: SavedState, job: Job, step: int) -> None:
    """Add a point to the job's curve."""
    value = job.value
    if math.isfinite(value) and (not job.curve or step > job.curve[-1][0]):
        add(job.curve, [step, value], POINTS if len(s.jobs) <= MANY else POINTS_OF_MANY)


def launched(job: Job, now_s: float) -> None:
    """Add a launch to the job's history."""
    gpus = " ".join(f"{w.host}:{i}" for w in job.workers for i in w.gpu_ids)
    job.history = [*job.history, {"began_s": now_s, "gpus": gpus, "from_step": job.step}][-LAUNCHES_KEPT:]


def ended(job: Job, now_s: float, why: str) -> None:
    """Record the end of the job's newest launch."""
    if job.history and "ended_s" not in job.history[-1]:
        job.history[-1] |= {"ended_s": now_s, "to_step": job.step, "why": why}


def lost(job: Job, from_step: int) -> None:
    """Count what the job trains again, all from this step on, as its last launch ended without a checkpoint of it."""
    steps = job.step - from_step
    gpus = len(job.history[-2]["gpus"].split()) if len(job.history) > 1 else 0
    job.lost_steps += steps
    job.lost_gpu_s += steps * job.iter_time_s * gpus


def files(s: SavedState, best: str) -> dict[str, str]:
    """{file name: content} of all result files."""
    jobs = sorted(s.jobs.values(), key=lambda j: j.job_id)
    return {
        "trials.csv": _table(_trials(s, jobs, best)),
        "launches.csv": _table(_launches(jobs)),
        "curves.svg": curves(jobs, best, s.spec.metric),
    }


def _trials(s: SavedState, jobs: Sequence[Job], best: str) -> Iterable[Sequence[Any]]:
    names = sorted({name for job in jobs for name in job.configuration})
    own = [] if s.spec.metric in ("loss", "accuracy") else [s.spec.metric]
    yield ["job", "state", "best", "step", "rung", "loss", "accuracy", *own, "launches", "failures", *names]
    for job in jobs:
        values = [job.loss or "", job.accuracy or "", *(["" if job.metric is None else job.metric] if own else [])]
        tried = job.launches, job.failures, *(job.configuration.get(name, "") for name in names)
        told = job.history[-1].get("to_step") if job.history else 0  # `over` counts the rung as done
        yield [job.job_id, job.state, int(job.job_id == best), told or job.step, job.rung, *values, *tried]


def _launches(jobs: Sequence[Job]) -> Iterable[Sequence[Any]]:
    yield ["job", "began_s", "ended_s", "gpus", "gpu_s", "from_step", "to_step", "why"]
    for job in jobs:
        for x in job.history:
            gpu_s = (x.get("ended_s", x["began_s"]) - x["began_s"]) * len(x["gpus"].split())
            times, steps = (f"{x['began_s']:.0f}", f"{x.get('ended_s', 0):.0f}"), (x["from_step"], x.get("to_step", ""))
            yield [job.job_id, *times, x["gpus"], f"{gpu_s:.0f}", *steps, x.get("why", "")]


def _table(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def curves(jobs: Sequence[Job], best: str, metric: str) -> str:
    """An SVG chart of the metric by step, one line per job, the best job's in front."""
    drawn = [j for j in jobs if len(j.curve) > 1 and j.job_id != best][:CURVES_DRAWN]
    drawn += [j for j in jobs if len(j.curve) > 1 and j.job_id == best]
    points = [p for job in drawn for p in job.curve]
    low, high = min((v for _, v in points), default=0.0), max((v for _, v in points), default=1.0)
    last = max((step for step, _ in points), default=1)
    span = (high - low) or 1.0

    def at(step: float, value: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / (last or 1)
        return f"{x:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / span:.1f}"

    lines = [
        f'<polyline fill="none" stroke="{"#c0392b" if job.job_id == best else "#7f8c8d"}" stroke-opacity='
        f'"{1 if job.job_id == best else 0.5}" points="{" ".join(at(*p) for p in job.curve)}">'
        f"<title>{escape(job.job_id)}</title></polyline>"
        for job in drawn
    ]
    axis = f"M{MARGIN},{MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}"
    words = [
        (MARGIN, MARGIN - 8, "start", f"{metric}, by step; red: {best}"),
        (MARGIN - 4, MARGIN + 4, "end", f"{high:.4g}"),
        (MARGIN - 4, HEIGHT - MARGIN, "end", f"{low:.4g}"),
        (WIDTH - MARGIN, HEIGHT - MARGIN + 16, "end", f"{last:g}"),
    ]
    texts = [f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(t)}</text>' for x, y, anchor, t in words]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return "\n".join(
        [f'{head} font-size="11">', f'<path fill="none" stroke="black" d="{axis}"/>', *lines, *texts, "</svg>", ""]
    )
