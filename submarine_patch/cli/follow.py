"""An app's status from the control plane and YARN, and a progress bar that follows it to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pycontrol.cli import screens
from pycontrol.cli.client import Failure, Rm

POLL_S = 2.0
AWAY_MAX_S = 900.0
"""How long to wait for a ResourceManager that is away (restart, failover)."""
DONE = ("done", "stopped", "failed")


@dataclass(frozen=True)
class Status:
    """The status of an app."""

    app_id: str
    name: str
    state: str
    """YARN's state while the app runs, then SUCCEEDED, FAILED or KILLED."""
    fraction: float = 0.0
    """Fraction of its work that is done, if known."""
    message: str = ""
    gpus: int = 0
    reason: str = ""
    """Why it has no more GPUs."""
    rho: float | None = None
    best: Mapping[str, Any] = field(default_factory=dict)
    """For a finished app: configuration, accuracy, and the metric's name and value."""
    model_path: str = ""
    jobs: tuple[Mapping[str, Any], ...] = ()
    note: str = ""
    """What its user should know while it runs."""
    estimate: str = ""
    """When it starts, or once it has GPUs ends: `starts in ~25 m (15 m to 60 m)`; empty where that is not known."""

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.state in ("SUCCEEDED", "FAILED", "KILLED")

    @property
    def succeeded(self) -> bool:
        """Whether it has succeeded."""
        return self.state == "SUCCEEDED"

    def line(self) -> str:
        """For example `step 120/600, loss 0.231, 8 GPUs, 5 of 9 jobs over`."""
        parts = []
        ahead = max(self.jobs, key=lambda j: j["step"], default=None)
        if ahead is not None:
            of = f"/{ahead['until_step']}" if ahead.get("until_step") else ""
            parts.append(f"step {ahead['step']}{of}")
            if ahead["loss"]:
                parts.append(f"loss {ahead['loss']:.4g}")
            if ahead.get("metric") is not None:
                parts.append(f"metric {ahead['metric']:.4g}")
            elif ahead["accuracy"]:
                parts.append(f"accuracy {ahead['accuracy']:.4g}")
        parts.append(f"{self.gpus} GPU{'s' * (self.gpus != 1)}")
        if len(self.jobs) > 1:
            parts.append(f"{sum(j['state'] in DONE for j in self.jobs)} of {len(self.jobs)} jobs over")
        if not self.gpus and self.reason and not self.final:
            parts.append(f"waits: {self.reason}")
        parts += [text for text in (self.estimate, self.note) if text and not self.final]
        return ", ".join(parts)


def status_of(client: Rm, app_id: str) -> Status:
    """The present status, without the control plane's part while it is away; raises Failure if YARN is silent."""
    app = client.yarn(f"apps/{app_id}")["app"]
    state = app["finalStatus"] if app["state"] == "FINISHED" else app["state"]
    try:
        told = client.get("explain", app=app_id)
    except Failure:
        told = {}
    about, rho = told.get("app") or {}, told.get("rho") or {}
    gpus = int(about.get("gpus_held") or 0)
    jobs = tuple(told.get("jobs") or ())
    return Status(
        app_id=app_id,
        name=str(app.get("name", "")),
        state=str(state),
        fraction=1.0 if state == "SUCCEEDED" else float(app.get("progress") or 0.0) / 100.0,
        message=str((state != "KILLED" and about.get("message")) or app.get("diagnostics") or "").strip(),
        gpus=gpus,
        reason=str((told.get("reason") or {}).get("code") or ""),
        rho=rho.get("rho"),
        best=about.get("best") or {},
        model_path=str(about.get("model_path") or ""),
        jobs=jobs,
        note=next((f"{job['job_id']}: {job['note']}" for job in jobs if job.get("note")), ""),
        estimate=_estimate(told, gpus),
    )


def _estimate(told: Mapping[str, Any], gpus: int) -> str:
    found = told.get("estimate") or {}
    text = screens.estimate(found.get("start_s"), found.get("end_s"), gpus, told.get("now_s") or 0.0)
    return "" if text == "-" else text


def until_final(
    client: Rm, app_id: str, poll_s: float | None = None, timeout_s: float | None = None
) -> Iterator[Status]:
    """A status every `poll_s` (default 2 s), of which the last is final; raises TimeoutError after `timeout_s`."""
    began_s = answered_s = time.monotonic()
    jobs: tuple[Mapping[str, Any], ...] = ()
    while True:
        try:
            status = status_of(client, app_id)
            answered_s = time.monotonic()
            jobs = status.jobs or jobs  # the control plane forgets them when the app ends
            status = replace(status, jobs=jobs)
            yield status
            if status.final:
                return
        except Failure:
            if time.monotonic() - answered_s > AWAY_MAX_S:
                raise
        if timeout_s is not None and time.monotonic() - began_s > timeout_s:
            raise TimeoutError(f"{app_id} has not ended within {timeout_s:g} s")
        time.sleep(POLL_S if poll_s is None else poll_s)


def wait_with_bar(client: Rm, app_id: str) -> int:
    """Show a bar until the app ends; returns 0 if it succeeded, else 1, with the reason on standard error."""
    status = shown(until_final(client, app_id))
    if not status.succeeded:
        print(f"submarine: {status.name or app_id} {status.state}: {status.message}", file=sys.stderr)
    return 0 if status.succeeded else 1


def shown(statuses: Iterator[Status]) -> Status:
    """Draw each status as a bar in a terminal or a notebook; returns the last one."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[name]}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TimeElapsedColumn(), TextColumn("{task.description}"))  # fmt: skip
    last: Status | None = None
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=1.0, name="")
        for last in statuses:
            progress.update(bar, completed=last.fraction, description=last.line(), name=last.name)
    assert last is not None, "there is at least one status"
    return last
