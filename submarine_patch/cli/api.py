"""`isonomy.submit(...)`: the command line's submission for programs and notebooks, with the same checks."""

from __future__ import annotations

import csv
import io
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pycontrol.cli.client import Conflict, Failure, Rm, rm_address
from pycontrol.cli.get import read_results
from pycontrol.hadoopconf.sitefile import rm_web_url
from submarine_patch.cli import check, submitted
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.follow import NO_GOAL, Goal, Status, goal_of, shown, status_of, typed, until_final
from submarine_patch.cli.options import GROUP_OPTIONS, parse_run

STARTING_S = 120.0
"""How long an application master may take until it can be told anything."""
POLL_S = 1.0


class SubmissionError(Exception):
    """The cluster did not accept the job; the message says why."""


class Handle:
    """An app, here or in another process: `isonomy.app("my-sweep")` finds one."""

    def __init__(self, client: Rm, app_id: str, goal: Goal = NO_GOAL) -> None:
        self._client, self.app_id, self._goal = client, app_id, goal
        self._jobs: tuple[Mapping[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"<isonomy app {self.app_id}>"

    def status(self) -> Status:
        """The present status."""
        return self._remembered(status_of(self._client, self.app_id, self._goal))

    def _remembered(self, status: Status) -> Status:
        """The status with the jobs as last seen, because the control plane forgets them when the app ends."""
        self._jobs = status.jobs or self._jobs
        return replace(status, jobs=self._jobs)

    def wait(self, *, progress: bool = False, timeout_s: float | None = None, poll_s: float | None = None) -> Status:
        """Wait for its end; `progress` draws a bar. Raises TimeoutError after `timeout_s`."""
        statuses = until_final(self._client, self.app_id, poll_s, timeout_s, self._goal)
        if progress:
            return self._remembered(shown(statuses))
        return self._remembered(deque(statuses, maxlen=1)[0])

    def best(self) -> Mapping[str, Any]:
        """The best job's configuration, the metric's name and value, and where the model is; {} before the end."""
        status = self.status()
        return {**status.best, "model_path": status.model_path} if status.best else {}

    def trials(self) -> Any:
        """One row per job as last seen by this handle: a pandas frame if pandas is installed, else a list of dicts.

        Hyper-parameters are numbers again, and the column of what jobs are compared by has the metric's name. Of an app
        that had ended before, the rows are those of its trials.csv, and Failure is raised if there is none.
        """
        status = self.status()
        rows = [_row(job, status.goal.metric or "metric") for job in status.jobs]
        if not rows and status.final:
            table = read_results(self._client.user, dict(self.explain()["app"]), "trials.csv")
            rows = [{name: typed(text) for name, text in row.items()} for row in csv.DictReader(io.StringIO(table))]
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def explain(self) -> Mapping[str, Any]:
        """Everything that the control plane knows about it."""
        return self._client.get("explain", app=self.app_id)

    def logs(self, tail: int = 50) -> str:
        """The newest lines of its workers' logs."""
        from pycontrol.cli import main

        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            main(["--rm", self._client.base, "logs", self.app_id, "--tail", str(tail)], standalone_mode=False)
        return out.getvalue()

    def kill(self) -> None:
        """End the app; one that was just submitted is waited for until it has asked for GPUs, `STARTING_S` at most."""
        until_s = time.monotonic() + STARTING_S
        while True:
            try:
                self._client.post("kill", app=self.app_id)
                return
            except Conflict:
                if self.status().final:
                    return
                if time.monotonic() > until_s:
                    raise
            time.sleep(POLL_S)


def _row(job: Mapping[str, Any], metric: str) -> dict[str, Any]:
    unseen = {k: None for k in ("loss", "accuracy") if not job.get(k)}  # 0: no line showed one
    told = {metric if k == "metric" else k: v for k, v in {**job, **unseen}.items() if k != "configuration"}
    return {**told, **{name: typed(value) for name, value in job["configuration"].items()}}


def submit(
    command: str,
    *,
    name: str,
    memory: str = "2G",
    vcores: int = 1,
    gpus: int = 1,
    workers: int = 1,
    queue: str = "",
    files: Iterable[str | Path] = (),
    env: Mapping[str, str] | None = None,
    framework: str = "",
    search_space: Mapping[str, Any] | str | Path | None = None,
    saved_model_path: str = "",
    checkpoint_path: str = "",
    input_path: str = "",
    **options: Any,
) -> Handle:
    """Submit `command` and return immediately; raises UsageError for a mistake, before any request to the cluster.

    Notes, what is declared, and when it would start and end are on standard error.

    `memory`, `vcores` and `gpus` are one worker's; `files` go to the workers; `search_space` is a file or its
    parameters. `options` are those of `submarine job run --help` for groups, with `_` for `-`: app_scheduler,
    max_iterations, metric, mode, keep_folder ... HADOOP_CONF_DIR names the cluster.
    """
    known = {o.name.replace("-", "_") for o in GROUP_OPTIONS}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"{unknown[0]}: unknown option; known are {', '.join(sorted(known))}")
    resources = f"memory={memory},vcores={vcores}" + (f",gpu={gpus}" if gpus else "")
    told = {"worker_launch_cmd": command, "num_workers": workers, "queue": queue, "framework": framework}
    told |= {"worker_resources": resources, "input_path": input_path}
    told |= {"saved_model_path": saved_model_path, "checkpoint_path": checkpoint_path}
    words = ["--name", name]
    words += [word for option, value in told.items() if value != "" for word in (f"--{option}", str(value))]
    for file in files:
        words += ["--localization", f"{file}:."]
    for key, value in (env or {}).items():
        words += ["--env", f"{key}={value}"]
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", str(value)] if value is not None else []
    with tempfile.TemporaryDirectory(prefix="isonomy-") as scratch:
        if isinstance(search_space, Mapping):
            file = Path(scratch, "space.yaml")
            file.write_text(yaml.safe_dump({"parameters": dict(search_space.get("parameters", search_space))}))
            search_space = file
        words += ["--search-space", str(search_space)] if search_space is not None else []
        return _submitted(words)


def _submitted(words: list[str]) -> Handle:
    parsed = parse_run(words)
    for note in check(parsed):
        print(f"isonomy: {note}", file=sys.stderr)
    conf, foresight, ended = submitted(parsed, quiet=True, keep=True)
    if ended.application_id is None:
        raise SubmissionError(ended.errors or f"the submission ended with status {ended.status}")
    if line := foresight.line():
        print(f"isonomy: {line}", file=sys.stderr)
    return Handle(Rm(rm_web_url(conf_dir=conf)), ended.application_id, goal_of(parsed.conf))


def app(name: str, *, rm: str | None = None) -> Handle:
    """The handle of an existing app, by name or id; raises Failure if there is none."""
    client = Rm(rm_address(rm))
    return Handle(client, str(client.get("explain", app=name)["app"]["app_id"]))


__all__ = ["Failure", "Handle", "Status", "SubmissionError", "UsageError", "app", "submit"]
