"""isonomy-app.json: the user's options, as the Submarine runtime wrote them."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.model.topology import Scope

if TYPE_CHECKING:
    from submarine_patch.worker.checkpoints import Files

FILE = "isonomy-app.json"
SAMPLERS = ("tpe", "random", "gp")
"""Samplers of the scheduler optuna."""
WITHIN = {
    "machine": Scope.MACHINE,
    "socket": Scope.MACHINE,
    "switch": Scope.MACHINE,
    "rack": Scope.RACK,
    "cluster": Scope.CLUSTER,
}
"""The widest scope of a gang, by the option's value."""
SEGMENTS = r"([1-9][0-9]{0,2})x([1-9][0-9]{0,5})(/machine|/rack|/socket|/switch)?"
CELL_TYPES = ("socket", "switch")
"""Values of WITHIN that name a cell type smaller than a machine."""


READ: Mapping[str, Callable[[Any], Any]] = {
    "bool": lambda value: str(value).lower() == "true",
    "int": int,
    "float": float,
    "float | None": float,
}
"""How a field of this type is read; others are taken as they are."""


def _given(f: Field[Any], told: Mapping[str, Any]) -> bool:
    """Whether the file says the field's value; what has no default is needed."""
    needed = f.default is MISSING and f.default_factory is MISSING
    return needed or told.get(f.name) not in (None, "")


def _read(kind: str, value: Any) -> Any:
    return READ[kind](value) if kind in READ else value


@dataclass(frozen=True, kw_only=True)
class AppSpec:
    """An app: a group of jobs, each a gang of `gang_gpus` GPUs."""

    app_id: str
    name: str
    app_scheduler: str = "single"
    search_space: Mapping[str, Any] | None = None
    gang_gpus: int
    max_iterations: int = 0
    min_iterations: int = 0
    eta: int = 3
    jobs: int = 0
    budget_iterations: int = 0
    metric: str = "accuracy"
    """The value that ranks jobs: accuracy, loss, or any other that the training reports."""
    seed: int = 0
    max_retries: int = 3
    iteration_s: float | None = None
    slowdown: tuple[float, float, float] = SLOWDOWN_PRIOR
    launch_cmd: str
    memory_mb: int
    vcores: int
    env: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str
    saved_model: str
    staging: str
    webhdfs: str
    hdfs_user: str
    python: str = "python3"
    arbiter: str
    ca: str = ""
    resources: tuple[Mapping[str, Any], ...] = ()
    sampler: str = "tpe"
    """Sampler of the scheduler optuna: tpe, random or gp."""
    parallel: int = 4
    """Jobs that the scheduler optuna runs at the same time."""
    target: float | None = None
    """Value of the metric at which the scheduler curve ends the app."""
    gpu_type: str = ""
    """The only GPU type that it takes; empty: any."""
    mix_types: bool = False
    """Whether a gang may have GPUs of several types; the slowest sets its pace."""
    speedups: Mapping[str, float] = field(default_factory=dict)
    """{GPU type: speed relative to the slowest type}, used until measured; empty: all equal."""
    job_type: str = ""
    """Name under which measured speedups are stored; jobs of one type run equally fast."""
    trial_steps: int = 0
    """Iterations to try on each GPU type for which the job type's speed is unknown; 0: no trials."""
    mode: str = ""
    """Whether a larger (max) or a smaller (min) value of the metric is better; empty: min of the loss, else max."""
    keep_folder: str = ""
    """A folder of the script's own checkpoints to carry over between launches, relative to its working directory."""
    opportunistic: bool = False
    """Whether it runs on borrowed GPUs, which their owners may take back."""
    lazy_preemption: bool = False
    """Whether it keeps GPUs that it loses within its queue until another app needs these very GPUs."""
    within: str = ""
    """One of WITHIN, a hard limit on a gang's scope; empty: anywhere."""
    segments: tuple[int, str] = (0, "machine")
    """Equal parts of a gang, and in what each must lie: one of WITHIN; 0: none."""
    pinned: str = ""
    """The pinned cell of its queue that it runs in; empty: anywhere."""
    webhdfs_ca: str = ""
    """PEM certificate that verifies an https WebHDFS; empty: the certificates that each machine trusts."""
    gpu_bound: float = 1.0
    """The fraction of iteration_s that a faster virtual GPU shortens."""
    notify: str = ""
    """URL to which JSON is posted when the app starts, loses GPUs, ends or fails."""
    tensorboard: bool = False
    """Whether TensorBoard runs next to the Agent."""
    quicklinks: tuple[tuple[str, str, str, int], ...] = ()
    """(label, scheme with ://, host or worker-N, port) of each link on its page."""
    unsaved: bool = False
    """Whether its script writes no checkpoints, as far as the submission could tell."""
    servers: int = 0
    """Parameter servers of a job; they and its coordinator run in its workers' containers."""
    server_memory_mb: int = 0
    server_vcores: int = 0
    server_cmd: str = ""
    """The servers' launch command; empty: the workers'."""
    hours: float = 0.0
    """Hours that a job trains on its GPUs, as the user said; 0: not said."""
    epochs: int = 0
    """Epochs that a job trains, as the user said; 0: not said."""
    job_gpus_max: int = 0
    """More than `gang_gpus`: its jobs are elastic, and a gang has up to so many GPUs."""

    def files_at(self, where: str) -> Files:
        """The files in a folder, a local path or on HDFS."""
        from submarine_patch.worker.checkpoints import files_at

        return files_at(where, self.webhdfs, self.hdfs_user, self.webhdfs_ca)

    @property
    def scope(self) -> Scope:
        """The widest scope in which a gang may run."""
        return WITHIN.get(self.within, Scope.CLUSTER)

    @property
    def job_gpu_s(self) -> float:
        """The declared work of one job in serial GPU-seconds; 0 if `hours` does not say it."""
        return self.hours * 3600.0 * self.gang_gpus

    @property
    def guess_s(self) -> float:
        """Serial GPU-seconds of an iteration, until it is measured, if `iteration_s` does not say it."""
        return self.job_gpu_s / self.max_iterations if self.hours and self.max_iterations else 1.0

    @property
    def elastic(self) -> bool:
        """Whether its jobs can run on a varying number of GPUs."""
        return self.job_gpus_max > self.gang_gpus

    @property
    def reusable(self) -> bool:
        """Whether a job may go on in another one's process: trials of a script with a session."""
        return self.app_scheduler != "single" and not (self.unsaved or self.keep_folder or self.servers)

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value of the metric is better."""
        return lower_is_better(self.metric, self.mode)

    @classmethod
    def load(cls, path: Path) -> AppSpec:
        """Read the file; raises KeyError, TypeError, ValueError or OverflowError that names it."""
        return cls.of(json.loads(path.read_text()))

    @classmethod
    def of(cls, d: Mapping[str, Any]) -> AppSpec:
        """The spec from the file's content; raises as `load` does. What is null or empty has its default."""
        worker, paths, servers = d["worker"], d["paths"], d.get("servers") or {}
        given = {k.removeprefix("isonomy."): v for k, v in (d.get("conf") or {}).items()}
        told = {
            **given,
            **d,
            **worker,
            "gang_gpus": d["gpus_per_job"],
            "job_gpus_max": gpus_range(given.get("gpus_per_job") or "")[1],
            "slowdown": tuple(float(x) for x in d.get("slowdown") or SLOWDOWN_PRIOR),
            "speedups": speedups_of(given.get("speedups") or ""),
            "segments": segments_of(given.get("segments") or "", int(d["gpus_per_job"])),
            "job_type": given.get("job_type") or worker["launch_cmd"],
            "checkpoint": paths.get("checkpoint") or f"{d['staging']}/checkpoints",
            "saved_model": paths.get("saved_model") or f"{d['staging']}/saved_model",
            "resources": tuple(d.get("resources") or ()),
            "quicklinks": tuple(
                (q["label"], q["protocol"], q["host"], int(q["port"])) for q in d.get("quicklinks") or ()
            ),
            "servers": servers.get("count"),
            "server_memory_mb": servers.get("memory_mb"),
            "server_vcores": servers.get("vcores"),
            "server_cmd": servers.get("launch_cmd"),
        }
        return cls(**{f.name: _read(str(f.type), told[f.name]) for f in fields(cls) if _given(f, told)})

    def command(self, configuration: Mapping[str, str], launch_cmd: str = "") -> str:
        """A launch command, by default the workers', with the hyper-parameters filled in, or appended if it has no
        placeholder."""
        options = " ".join(f"--{k} {shlex.quote(v)}" for k, v in configuration.items())
        command, used = launch_cmd or self.launch_cmd, False
        for name, value in configuration.items():
            if f"%{name}%" in command:
                command, used = command.replace(f"%{name}%", shlex.quote(value)), True
        if "%hyperparameters%" in command:
            command, used = command.replace("%hyperparameters%", options), True
        return command if used or not options else f"{command} {options}"


def lower_is_better(metric: str, mode: str) -> bool:
    """Whether a smaller value of the metric is better; without `mode`, if its name ends with loss."""
    return mode == "min" or (not mode and re.search(r"(?:^|[_/.-])loss$", metric) is not None)


def gpus_range(text: str) -> tuple[int, int]:
    """(fewest, most) GPUs of a job from "1:8" or "4"; (0, 0) for an empty text. Raises ValueError for other text."""
    least, colon, most = text.strip().partition(":")
    if not text.strip():
        return 0, 0
    found = int(least), int(most if colon else least)
    if not 1 <= found[0] <= found[1] or found[1] % found[0]:
        raise ValueError(f"isonomy.gpus_per_job={text}: must be like 4, or 1:8 (the most a multiple of the fewest)")
    return found


def segments_of(text: str, gang_gpus: int) -> tuple[int, str]:
    """`AppSpec.segments` from "2x4" or "2x4/rack"; raises ValueError unless they are the GPUs of a job."""
    found = re.fullmatch(SEGMENTS, text)
    if text and (found is None or int(found[1]) * int(found[2]) != gang_gpus):
        what = f"like 2x4 (each on one machine), 2x4/rack or 2x4/switch, and all GPUs of a job, {gang_gpus}"
        raise ValueError(f"isonomy.segments={text}: must be {what}")
    return (int(found[1]), (found[3] or "/machine")[1:]) if found else (0, "machine")


def speedups_of(text: str) -> dict[str, float]:
    """{GPU type: speed} from "K80=1,V100=3.2"; raises ValueError for a speed that is no positive number."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    found = {name.strip(): float(speed) for name, _, speed in pairs}
    if any(not name or not 0 < speed < math.inf for name, speed in found.items()):
        raise ValueError(f"isonomy.speedups={text}: must be like K80=1,V100=3.2")
    return found
