"""isonomy-app.json: what the user asked for, as the Submarine runtime wrote it."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycontrol.model.topology import Scope
from submarine_patch.worker.checkpoints import Files, files_at

FILE = "isonomy-app.json"
APP_SCHEDULERS = ("single", "hyperband", "successive_halving", "asha", "median", "curve", "optuna")
SAMPLERS = ("tpe", "random", "gp")
"""Of the scheduler optuna."""
WITHIN = {"machine": Scope.MACHINE, "socket": Scope.MACHINE, "switch": Scope.MACHINE, "rack": Scope.RACK}
"""How far apart the GPUs of a gang may lie, by name."""
CELL_TYPES = ("socket", "switch")
"""Those that are types of cells smaller than a machine."""


@dataclass(frozen=True)
class AppSpec:
    """An app: a group of jobs, each a gang of `gang_gpus` GPUs."""

    app_id: str
    name: str
    app_scheduler: str
    search_space: Mapping[str, Any] | None
    gang_gpus: int
    max_iterations: int
    min_iterations: int
    eta: int
    jobs: int
    budget_iterations: int
    metric: str
    """What jobs are compared by: accuracy, loss, or any value that the training reports."""
    seed: int
    max_retries: int
    iteration_s: float | None
    slowdown: tuple[float, float, float]
    launch_cmd: str
    memory_mb: int
    vcores: int
    worker_count: int
    env: Mapping[str, str]
    checkpoint: str
    saved_model: str
    staging: str
    webhdfs: str
    hdfs_user: str
    python: str
    arbiter: str
    ca: str
    resources: tuple[Mapping[str, Any], ...] = field(default=())
    sampler: str = "tpe"
    """Of the scheduler optuna: tpe, random or gp."""
    parallel: int = 4
    """Jobs at once, with the scheduler optuna."""
    target: float | None = None
    """Of the metric: with the scheduler curve, all is done once a job meets it."""
    gpu_type: str = ""
    """The only type that it takes; empty: any."""
    mix_types: bool = False
    """Whether a gang may have GPUs of several types; the slowest sets its pace."""
    speedups: Mapping[str, float] = field(default_factory=dict)
    """GPU type -> speed relative to the slowest type, until measured; empty: all alike."""
    job_type: str = ""
    """What measured speedups are kept under: jobs of one type run alike."""
    trial_steps: int = 0
    """Iterations to try on each GPU type that the job type is not yet known on."""
    mode: str = ""
    """Whether a larger (max) or a smaller (min) value of the metric is better; empty: min of the loss, else max."""
    keep_folder: str = ""
    """A folder of the script's own checkpoints that is kept between its launches, relative to where it runs."""
    opportunistic: bool = False
    """It takes GPUs that nobody else uses, and gives way to all who own them."""
    lazy_preemption: bool = False
    """What it loses to others of its queue it keeps as long as nobody else needs these very GPUs."""
    within: str = ""
    """One of WITHIN, a hard limit; empty: anywhere."""
    pinned: str = ""
    """The pinned cell of its queue that it runs in; empty: anywhere."""
    webhdfs_ca: str = ""
    """PEM certificate by which an https WebHDFS is known; empty: those that each machine trusts."""
    gpu_bound: float = 1.0
    """The part of iteration_s that a faster virtual GPU makes faster."""
    notify: str = ""
    """Where JSON is posted when the app starts, loses GPUs, ends or fails."""
    tensorboard: bool = False
    """Whether TensorBoard runs beside the Agent."""
    quicklinks: tuple[tuple[str, str, str, int], ...] = ()
    """(label, scheme with ://, host or worker-N, port) for its page."""
    unsaved: bool = False
    """Its script keeps no checkpoints, as far as the submission could tell."""
    job_gpus_max: int = 0
    """More than `gang_gpus`: its jobs are elastic, and a gang has up to so many GPUs."""

    def files_at(self, where: str) -> Files:
        """A folder of the app."""
        return files_at(where, self.webhdfs, self.hdfs_user, self.webhdfs_ca)

    @property
    def scope(self) -> Scope:
        """The widest in which a gang may run."""
        return WITHIN.get(self.within, Scope.CLUSTER)

    @property
    def elastic(self) -> bool:
        """Whether its jobs run on more GPUs or fewer."""
        return self.job_gpus_max > self.gang_gpus

    @property
    def lower_is_better(self) -> bool:
        """Of the metric: where nothing is said, of every loss."""
        return self.mode == "min" or (not self.mode and re.search(r"(?:^|[_/.-])loss$", self.metric) is not None)

    @classmethod
    def load(cls, path: Path) -> AppSpec:
        """Reads the file; KeyError or ValueError name what is wrong."""
        d = json.loads(path.read_text())
        worker, paths = d["worker"], d["paths"]
        slowdown = tuple(float(x) for x in (d.get("slowdown") or (1.0, 1.1, 1.3)))
        given = {k.removeprefix("isonomy."): v for k, v in (d.get("conf") or {}).items() if v}
        return cls(
            app_id=d["app_id"],
            name=d["name"],
            app_scheduler=d.get("app_scheduler") or "single",
            search_space=d.get("search_space"),
            gang_gpus=int(d["gpus_per_job"]),
            max_iterations=int(d.get("max_iterations") or 0),
            min_iterations=int(d.get("min_iterations") or 0),
            eta=int(d.get("eta") or 3),
            jobs=int(d.get("jobs") or 0),
            budget_iterations=int(d.get("budget_iterations") or 0),
            metric=d.get("metric") or "accuracy",
            seed=int(d.get("seed") or 0),
            max_retries=int(d["max_retries"] if d.get("max_retries") is not None else 3),
            iteration_s=float(d["iteration_s"]) if d.get("iteration_s") else None,
            slowdown=(slowdown[0], slowdown[1], slowdown[2]),
            launch_cmd=worker["launch_cmd"],
            memory_mb=int(worker["memory_mb"]),
            vcores=int(worker["vcores"]),
            worker_count=int(worker.get("count") or 1),
            env=worker.get("env") or {},
            checkpoint=paths.get("checkpoint") or f"{d['staging']}/checkpoints",
            saved_model=paths.get("saved_model") or f"{d['staging']}/saved_model",
            staging=d["staging"],
            webhdfs=d["webhdfs"],
            hdfs_user=d["hdfs_user"],
            python=d.get("python") or "python3",
            arbiter=d["arbiter"],
            ca=d.get("ca") or "",
            webhdfs_ca=d.get("webhdfs_ca") or "",
            resources=tuple(d.get("resources") or ()),
            sampler=given.get("sampler", "tpe"),
            parallel=int(given.get("parallel", 4)),
            target=float(given["target"]) if "target" in given else None,
            gpu_type=d.get("gpu_type") or "",
            mix_types=str(given.get("mix_types", "")).lower() == "true",
            speedups=speedups_of(given.get("speedups", "")),
            job_type=given.get("job_type") or worker["launch_cmd"],
            trial_steps=int(given.get("trial_steps", 0)),
            mode=given.get("mode", ""),
            keep_folder=given.get("keep_folder", ""),
            opportunistic=given.get("opportunistic") == "true",
            lazy_preemption=given.get("lazy_preemption") == "true",
            within=given.get("within", ""),
            pinned=given.get("pinned", ""),
            gpu_bound=float(given.get("gpu_bound", 1.0)),
            notify=given.get("notify", ""),
            unsaved=given.get("unsaved") == "true",
            tensorboard=bool(d.get("tensorboard")),
            quicklinks=tuple((q["label"], q["protocol"], q["host"], int(q["port"])) for q in d.get("quicklinks") or ()),
            job_gpus_max=gpus_range(given.get("gpus_per_job", ""))[1],
        )

    def command(self, configuration: Mapping[str, str]) -> str:
        """The launch command with the hyper-parameters put in; appended where it has no place for them."""
        options = " ".join(f"--{k} {shlex.quote(v)}" for k, v in configuration.items())
        command, used = self.launch_cmd, False
        for name, value in configuration.items():
            if f"%{name}%" in command:
                command, used = command.replace(f"%{name}%", shlex.quote(value)), True
        if "%hyperparameters%" in command:
            command, used = command.replace("%hyperparameters%", options), True
        return command if used or not options else f"{command} {options}"


def gpus_range(text: str) -> tuple[int, int]:
    """Fewest and most GPUs of a job from "1:8" or "4"; (0, 0) where nothing is said; ValueError where it is neither."""
    least, colon, most = text.strip().partition(":")
    if not text.strip():
        return 0, 0
    found = int(least), int(most if colon else least)
    if not 1 <= found[0] <= found[1] or found[1] % found[0]:
        raise ValueError(f"isonomy.gpus_per_job={text}: must be like 4, or 1:8 (the most a multiple of the fewest)")
    return found


def speedups_of(text: str) -> dict[str, float]:
    """GPU types and their speeds from "K80=1,V100=3.2"; ValueError where one is no number above 0."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    found = {name.strip(): float(speed) for name, _, speed in pairs}
    if any(not name or not 0 < speed < math.inf for name, speed in found.items()):
        raise ValueError(f"isonomy.speedups={text}: must be like K80=1,V100=3.2")
    return found
