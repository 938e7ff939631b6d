"""Checks of Submarine's own options before any connection: what the job is, its files, its framework."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from pycontrol.words import suggest
from submarine_patch.agent.spec import gpus_range
from submarine_patch.cli.checks import FRAMEWORKS
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.options import RunArguments, add_conf

RESOURCES = ("memory", "memory-mb", "vcores", "gpu", "yarn.io/gpu")
SET_BY_US = ("CUDA_VISIBLE_DEVICES", "TF_CONFIG", "HADOOP_TOKEN_FILE_LOCATION", "MASTER_ADDR", "MASTER_PORT", "RANK",
             "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES")  # fmt: skip
INSTEAD = {
    "num_ps": "parameter servers are not supported; use synchronous workers (--num_workers)",
    "num_schedulers": "MXNet's schedulers are not supported; use synchronous workers (--num_workers)",
    "tensorboard": "not supported; run tensorboard --logdir on the checkpoint path instead",
    "quicklink": "not supported; leave it out",
    "distribute_keytab": "not supported; the job runs on delegation tokens, leave it out",
}
INPUT = "/"
"""For --input_path, which the stock command line wants with --num_workers, where nothing in the command reads it."""
KNOWS_US = re.compile(rb"\b(isonomy|submarine_patch)\b")
PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*|(?:\S*/)?torchrun")


def check_job(parsed: RunArguments) -> list[str]:
    """Raises UsageError for the first mistake; notes for the user. What is absent and needless is filled in."""
    given = parsed.values
    for name, why in INSTEAD.items():
        if name in given and given[name][-1] not in ("0", "false"):
            raise UsageError(f"--{name}: {why}")
    if parsed.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parsed.name):
        raise UsageError(f"--name {parsed.name}: letters, digits, '.', '_' and '-' only")
    _framework(parsed)
    _environment(given.get("env", []))
    if parsed.spec_file is not None:
        return []
    for name, what in (("worker_resources", "memory=2G,vcores=2,gpu=1"), ("worker_launch_cmd", '"python train.py"')):
        if not given.get(name, [""])[-1].strip():
            raise UsageError(f"--{name} is absent: for example --{name} {what}")
    _resources(given["worker_resources"][-1])
    workers = _workers(given.get("num_workers", ["1"])[-1])
    command = given["worker_launch_cmd"][-1]
    if "input_path" not in given:
        if "%input_path%" in command:
            raise UsageError("--input_path is absent, and the launch command has %input_path%")
        if "num_workers" in given:
            parsed.stock += ["--input_path", INPUT]
    notes = _keras(parsed, workers)
    local = _localizations(given.get("localization", []))
    script = _script(command, local)
    return notes + _notes(parsed, script)


def _framework(parsed: RunArguments) -> None:
    """Ours among the frameworks are TensorFlow's for the stock command line."""
    if "framework" not in parsed.values:
        return
    name = parsed.values["framework"][-1].lower()
    if name not in FRAMEWORKS:
        raise UsageError(f"--framework {name}: unknown; {suggest(name, FRAMEWORKS)}")
    at = parsed.stock.index("--framework")
    parsed.stock[at + 1] = name if name in FRAMEWORKS[:3] else "tensorflow"
    if "framework" not in parsed.conf:
        parsed.conf["framework"] = name
        parsed.stock += ["--conf", f"isonomy.framework={name}"]


def _resources(text: str) -> None:
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        if name not in RESOURCES:
            hint = suggest(name, RESOURCES, otherwise="known are memory, vcores and gpu")
            raise UsageError(f"--worker_resources {name}: unknown; {hint}")
        wanted = r"[0-9]+(\.[0-9]+)?\s*[kKmMgGtT]?[iI]?[bB]?" if name.startswith("memory") else r"[0-9]+"
        if not equals or not re.fullmatch(wanted, value.strip()):
            raise UsageError(f"--worker_resources {pair.strip()}: write for example memory=2G,vcores=2,gpu=1")
    if not re.search(r"(^|,)\s*memory(-mb)?=", text):
        raise UsageError("--worker_resources: memory is absent; write for example memory=2G,vcores=2,gpu=1")


def _workers(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text.strip()) or int(text) < 1:
        raise UsageError(f"--num_workers {text}: must be a whole number, at least 1")
    return int(text)


def _environment(pairs: list[str]) -> None:
    for pair in pairs:
        name = pair.partition("=")[0]
        if name in SET_BY_US or name.startswith("ISONOMY_"):
            raise UsageError(f"--env {name}: this variable is set by Isonomy, leave it out")


def _keras(parsed: RunArguments, workers: int) -> list[str]:
    """Refuses `fit` over several machines, or keeps the jobs on one, and says so."""
    env = dict(pair.partition("=")[::2] for pair in parsed.values.get("env", []))
    legacy = env.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if parsed.conf.get("framework") == "keras" and workers > 1 and not legacy:
        raise UsageError(
            "--framework keras --num_workers: Keras 3 cannot fit over several workers on TensorFlow; add --env"
            " TF_USE_LEGACY_KERAS=1 (package tf_keras), or use one worker with more GPUs"
        )
    if parsed.conf.get("framework") != "keras" or legacy or _most_gpus(parsed) < 2:
        return []
    within = parsed.conf.get("within")
    if within == "rack":
        raise UsageError("--within rack: Keras 3 cannot fit over several machines; write --within machine")
    if within is None:
        add_conf(parsed, "within", "machine")
        return ["note: Keras 3 cannot fit over several machines: each job is kept on one (--within machine)"]
    return []


def _most_gpus(parsed: RunArguments) -> int:
    """Of one job; 0 where that is not to be read here."""
    of_worker = re.search(r"(?:^|,)\s*(?:yarn\.io/)?gpu=([0-9]+)", parsed.values["worker_resources"][-1])
    try:
        return gpus_range(parsed.conf.get("gpus_per_job", ""))[1] or int(of_worker[1] if of_worker else 0)
    except ValueError:
        return 0


def _localizations(pairs: list[str]) -> dict[str, Path | None]:
    """Names in the containers, and what they are here, as far as it is here."""
    found: dict[str, Path | None] = {}
    for pair in pairs:
        source, colon, target = pair.rpartition(":")
        if not colon or target.startswith("//"):
            source, target = pair, "."
        target = target.removesuffix(":rw").removesuffix(":ro")
        if target.startswith("/"):
            raise UsageError(f"--localization {pair}: an absolute target needs a Docker mount; write ./name")
        remote = re.match(r"[a-z0-9+.-]+://", source) and not source.startswith("file:")
        here = None if remote else Path(source.removeprefix("file://").removeprefix("file:"))
        if here is not None and not here.exists():
            raise UsageError(f"--localization {source}: no such file or folder here")
        name = target.removeprefix("./").strip("/")
        found[name if name not in ("", ".") else Path(source).name] = here
    return found


def _script(command: str, local: Mapping[str, Path | None]) -> Path | None:
    """The file that the command's Python runs, where it can be found here; UsageError where nobody has it."""
    try:
        words = shlex.split(command)
    except ValueError as e:
        raise UsageError(f"--worker_launch_cmd: {e}") from e
    if not words or not PYTHON.fullmatch(words[0]):
        return None
    script = next((w for w in words[1:] if w.endswith(".py") and not w.startswith("-")), None)
    if script is None or "-m" in words or "-c" in words or script.startswith("/") or "%" in script:
        return None
    parts = Path(script).parts
    if parts[0] not in local:
        here = f"--localization ./{script}:." if Path(script).is_file() else "--localization FILE:."
        raise UsageError(f"--worker_launch_cmd: {script} is not among the files of the workers; add {here}")
    source = local[parts[0]]
    return source.joinpath(*parts[1:]) if source is not None else None


def _notes(parsed: RunArguments, script: Path | None) -> list[str]:
    """A program that keeps nothing loses its work at each revocation: its user should know before."""
    if parsed.conf.get("keep_folder") or script is None:
        return []
    try:
        knows = KNOWS_US.search(script.read_bytes()) is not None
    except OSError:
        raise UsageError(f"--worker_launch_cmd: {script} cannot be read") from None
    if knows:
        return []
    return [f"note: {script.name} uses no isonomy session, and no --keep-folder is given: when its GPUs go to others it"
            " starts again (docs/submit.md)"]  # fmt: skip
