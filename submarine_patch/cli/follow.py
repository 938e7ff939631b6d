"""An app's status from the control plane and YARN, and a bar or lines that follow it to its end."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pycontrol.cli import screens
from pycontrol.cli.client import Failure, Rm, Unreachable
from pycontrol.cli.logs import newest_line
from pycontrol.words import count
from submarine_patch.agent.spec import lower_is_better

if TYPE_CHECKING:
    from rich.console import Console

POLL_S = 2.0
FIRST_POLL_S = 0.5
"""Until the first step, which its user awaits."""
LINE_S = 30.0
"""The longest time without a line where there is no terminal."""
UNREAD = "no line of its log shows progress"
"""In the note of a job; the newest line then says what its log looks like."""
AWAY_MAX_S = 900.0
"""How long to wait for a ResourceManager that is away (restart, failover)."""


class Goal(NamedTuple):
    """What the jobs of an app are compared by, as its submission said; empty for an app of another process."""

    metric: str = ""
    lower: bool = False
    """Whether a smaller value is better."""


NO_GOAL = Goal()


def goal_of(conf: Mapping[str, str]) -> Goal:
    """The goal that the isonomy.* pairs of a submission say."""
    metric = conf.get("metric") or "accuracy"
    return Goal(metric, lower_is_better(metric, conf.get("mode", "")))


@dataclass(frozen=True, repr=False)
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
    """Why it has no more GPUs: the code, and in words."""
    why: str = ""
    rho: float | None = None
    best: Mapping[str, Any] = field(default_factory=dict)
    """For a finished app: configuration, accuracy, and the metric's name and value."""
    model_path: str = ""
    jobs: tuple[Mapping[str, Any], ...] = ()
    goal: Goal = NO_GOAL
    note: str = ""
    """What its user should know while it runs."""
    lost: str = ""
    """What its jobs train again, as launches ended without a checkpoint; empty if that is nothing."""
    estimate: str = ""
    """When it ends, once it has GPUs: `ends in ~25 min (15 min to 60 min)`; empty where that is not known. `why` says
    when it starts."""

    def __repr__(self) -> str:
        return f"<Status of {self.name or self.app_id}: {self.line()}>"

    @property
    def final(self) -> bool:
        """Whether it has ended."""
        return self.state in ("SUCCEEDED", "FAILED", "KILLED")

    @property
    def succeeded(self) -> bool:
        """Whether it has succeeded."""
        return self.state == "SUCCEEDED"

    def line(self) -> str:
        """For example `step 120/600, loss 0.231, 8 GPUs, 7 of 9 measured, best val_loss 0.083 (units 75, lr 0.006)`; at
        the end its state and best result."""
        if self.final:
            result = screens.result(self.best) if self.best else ""
            return ", ".join(filter(None, [self.state, result, screens.kept(self.model_path)]))
        parts = []
        running = [j for j in self.jobs if j["state"] == "running"]
        ahead = max(running or self.jobs, key=lambda j: j.get("step", 0), default=None)
        if ahead is not None and ahead.get("step"):
            of = f"/{ahead['until_step']}" if ahead.get("until_step") else ""
            parts.append(f"step {ahead['step']}{of}")
            if ahead.get("loss"):
                parts.append(f"loss {ahead['loss']:.4g}")
            if ahead.get("metric") is not None:
                parts.append(f"{self.goal.metric or 'metric'} {ahead['metric']:.4g}")
        parts.append(count(self.gpus, "GPU"))
        if len(self.jobs) > 1:
            parts.append(f"{len(self._measured)} of {len(self.jobs)} measured{self._best_so_far}")
        if not self.gpus and self.why:
            parts.append(f"waits: {self.why}")
        parts += [text for text in (self.lost, self.estimate, self.note) if text]
        return ", ".join(parts)

    @property
    def _measured(self) -> list[Mapping[str, Any]]:
        return [j for j in self.jobs if j.get("metric") is not None]

    @property
    def _best_so_far(self) -> str:
        if not self.goal.metric or not self._measured:
            return ""
        best = sorted(self._measured, key=lambda j: j["metric"], reverse=not self.goal.lower)[0]
        with_ = ", ".join(f"{name} {_short(value)}" for name, value in best["configuration"].items())
        return f", best {self.goal.metric} {best['metric']:.4g} ({with_})"

    @property
    def news(self) -> tuple[Any, ...]:
        """What makes another line worth printing; steps and losses alone do not, but the first does."""
        return self.final, self.gpus, self.reason, self.note, self.trains, Counter(j["state"] for j in self.jobs)

    @property
    def trains(self) -> bool:
        """Whether a job has shown a step."""
        return any(j.get("step") for j in self.jobs)


def _short(value: str) -> str:
    """A value of a configuration, to four digits."""
    found = typed(value)
    return f"{found:.4g}" if isinstance(found, float) else str(found)


def typed(text: str) -> int | float | bool | str:
    """A value of a configuration as what it was before it became text."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def status_of(client: Rm, app_id: str, goal: Goal = NO_GOAL) -> Status:
    """The present status, without the control plane's part while it is away; raises Failure if YARN is silent."""
    app = client.yarn(f"apps/{app_id}")["app"]
    state = app["finalStatus"] if app["state"] == "FINISHED" else app["state"]
    try:
        told = client.get("explain", app=app_id)
    except Failure:
        told = {}
    about, rho, reason = (told.get(key) or {} for key in ("app", "rho", "reason"))
    gpus = int(about.get("gpus_held") or 0)
    jobs = tuple(told.get("jobs") or ())
    return Status(
        app_id=app_id,
        name=str(app.get("name", "")),
        state=str(state),
        fraction=1.0 if state == "SUCCEEDED" else float(app.get("progress") or 0.0) / 100.0,
        message=str((state != "KILLED" and about.get("message")) or app.get("diagnostics") or "").strip(),
        gpus=gpus,
        reason=str(reason.get("code") or ""),
        why=str(reason.get("sentence") or ""),
        rho=rho.get("rho"),
        best=about.get("best") or {},
        model_path=str(about.get("model_path") or ""),
        jobs=jobs,
        goal=goal if goal.metric else Goal(str((about.get("best") or {}).get("metric") or "")),
        note=next((f"{job['job_id']}: {job['note']}" for job in jobs if job.get("note")), ""),
        lost=str(told.get("lost") or ""),
        estimate=_estimate(told, gpus),
    )


def _estimate(told: Mapping[str, Any], gpus: int) -> str:
    end_s = (told.get("estimate") or {}).get("end_s") if gpus else None
    text = screens.estimate(None, end_s, gpus, told.get("now_s") or 0.0)
    return "" if text == "-" else text


def until_final(
    client: Rm, app_id: str, poll_s: float | None = None, timeout_s: float | None = None, goal: Goal = NO_GOAL
) -> Iterator[Status]:
    """A status every `poll_s` (default 2 s, half a second before the first step), of which the last is final.

    Raises TimeoutError after `timeout_s`, and Failure if the ResourceManager is away for AWAY_MAX_S or, before it has
    answered once, refuses to.
    """
    began_s = answered_s = time.monotonic()
    jobs: tuple[Mapping[str, Any], ...] = ()
    known, trains, line, line_s = False, False, "", -LINE_S
    while True:
        try:
            status = status_of(client, app_id, goal)
            answered_s, known, trains = time.monotonic(), True, status.trains
            jobs = status.jobs or jobs  # the control plane forgets them when the app ends
            if UNREAD in status.note and answered_s - line_s >= LINE_S:
                line, line_s = newest_line(client, app_id), answered_s
            note = f"{status.note}; the newest: {line}" if line and UNREAD in status.note else status.note
            status = replace(status, jobs=jobs, note=note)
            yield status
            if status.final:
                return
        except Failure as e:
            refused = not known and not isinstance(e, Unreachable)
            if refused or time.monotonic() - answered_s > AWAY_MAX_S:
                raise
        if timeout_s is not None and time.monotonic() - began_s > timeout_s:
            raise TimeoutError(f"{app_id} has not ended within {timeout_s:g} s")
        time.sleep(poll_s or (POLL_S if trains else FIRST_POLL_S))


def wait(client: Rm, app_id: str, goal: Goal = NO_GOAL) -> int:
    """Show progress until the app ends; returns 0 if it succeeded, else 1, with the reason on standard error."""
    status = shown(until_final(client, app_id, goal=goal))
    if not status.succeeded:
        print(f"submarine: {status.name or app_id} {status.state}: {status.message}", file=sys.stderr)
    return 0 if status.succeeded else 1


def shown(statuses: Iterator[Status]) -> Status:
    """Draw each status as a bar, in a terminal or a notebook with ipywidgets, elsewhere print what changed; returns the
    last one."""
    from rich.console import Console

    console = Console(stderr=True)
    draws = console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)
    seen = _drawn(console, statuses) if draws else _printed(statuses)
    return deque(seen, maxlen=1)[0]


def _drawn(console: Console, statuses: Iterator[Status]) -> Iterator[Status]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    name, share, said = map(TextColumn, ("{task.fields[name]}", "{task.percentage:>3.0f}%", "{task.description}"))
    with Progress(name, BarColumn(), share, TimeElapsedColumn(), said, console=console) as progress:
        bar = None
        for status in statuses:
            if bar is None:
                bar = progress.add_task("", total=1.0, name=status.name)
            progress.update(bar, completed=status.fraction, description=status.line(), name=status.name)
            yield status


def _printed(statuses: Iterator[Status]) -> Iterator[Status]:
    said: tuple[Any, ...] = ()
    at_s = -LINE_S
    for status in statuses:
        if status.news != said or time.monotonic() - at_s >= LINE_S:
            said, at_s = status.news, time.monotonic()
            print(time.strftime("%H:%M:%S"), status.name or status.app_id, status.line(), file=sys.stderr, flush=True)
        yield status
