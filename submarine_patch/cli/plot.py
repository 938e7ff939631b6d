"""`submarine job show --name N --plot`: the jobs of an app by how good they are, as bars in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BAR = 40


def plot(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each job, the longest bar being the largest value: of the metric, else of the loss."""
    known = [(j, v) for j in jobs if (v := value(j)) is not None]
    if not known:
        return ["no job has reported a loss yet"]
    least, most = min(0.0, *(v for _, v in known)), max(0.0, *(v for _, v in known))
    span, wide = (most - least) or 1.0, max(len(str(j["job_id"])) for j, _ in known)
    return [
        f"{j['job_id']:<{wide}} {j['state']:<8} step {j['step']:<7} {v:>11.5g} {'█' * round(BAR * (v - least) / span)}"
        for j, v in sorted(known, key=lambda found: found[1])
    ]


def value(job: Mapping[str, Any]) -> float | None:
    """What a job is compared by, else its loss; None before its first step."""
    if not job["step"]:
        return None
    own = job.get("metric")
    return float(job["loss"] if own is None else own)
