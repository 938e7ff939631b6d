"""Checks of Submarine's own options before any connection: what the job is, its files, its framework."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from pycontrol.words import suggest
from submarine_patch.agent.spec import gpus_range, segments_of
from submarine_patch.cli.checks import FRAMEWORKS
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.options import NO_MXNET_SERVERS, REFUSED, RunArguments, add_conf
from submarine_patch.cli.scriptchecks import check_script, has_session

RESOURCES = ("memory", "memory-mb", "vcores", "gpu", "yarn.io/gpu")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
SET_BY_US = ("CUDA_VISIBLE_DEVICES", "TF_CONFIG", "HADOOP_TOKEN_FILE_LOCATION", *_MASTER, *_RANKS)
INPUT = "/"
"""Default of --input_path, which the stock command line requires with --num_workers even if the command ignores it."""
LEAST_MB = 64
"""A smaller memory value probably lacks its unit."""


def check_job(parsed: RunArguments) -> list[str]:
    """Check the options and fill in defaults; returns notes for the user, raises UsageError for the first mistake."""
    given = parsed.values
    for name, why in REFUSED.items():
        if why and name in given and given[name][-1] not in ("0", "false"):
            raise UsageError(f"--{name}: {why}")
    if "name" in given and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parsed.value("name")):
        raise UsageError(f"--name {parsed.value('name')}: letters, digits, '.', '_' and '-' only")
    for link in given.get("quicklink", []):
        if not re.fullmatch(r"[^=<>\"']+=https?://[A-Za-z0-9.-]+:[0-9]{1,5}", link):
            raise UsageError(f"--quicklink {link}: write LABEL=http://HOST:PORT; worker-0 is the first worker's host")
    _framework(parsed)
    _environment(given.get("env", []))
    for option in ("input_path", "checkpoint_path", "saved_model_path"):
        _reachable(option, parsed.value(option))
    if "f" in given:
        return []
    for name, what in (("worker_resources", "memory=2G,vcores=2,gpu=1"), ("worker_launch_cmd", '"python train.py"')):
        if not parsed.value(name).strip():
            raise UsageError(f"--{name} is absent: for example --{name} {what}")
    _resources("worker_resources", parsed.value("worker_resources"))
    workers = _workers(parsed.value("num_workers", "1"))
    command = parsed.value("worker_launch_cmd")
    if "input_path" not in given:
        if "%input_path%" in command:
            raise UsageError("--input_path is absent, and the launch command has %input_path%")
        if "num_workers" in given:
            parsed.stock += ["--input_path", INPUT]
    notes = _keras(parsed, workers) + _servers(parsed, workers)
    if parsed.value("input_path").startswith("file:"):
        notes += [
            f"note: --input_path {parsed.value('input_path')}: is read on the worker's machine; each must have it"
        ]
    local = _localizations(given.get("localization", []))
    notes += _direction(parsed) + check_script(parsed, command, local)
    parsed.session = has_session(command, local)
    return notes + _spread(parsed, workers, parsed.session)


def _framework(parsed: RunArguments) -> None:
    """Check the framework; Isonomy's own ones are passed to the stock command line as TensorFlow."""
    if "framework" not in parsed.values:
        return
    name = parsed.value("framework").lower()
    if name not in FRAMEWORKS:
        raise UsageError(f"--framework {name}: unknown; {suggest(name, FRAMEWORKS)}")
    parsed.stock[parsed.stock.index("--framework") + 1] = name if name in FRAMEWORKS[:3] else "tensorflow"
    if "framework" not in parsed.conf:
        parsed.conf["framework"] = name
        parsed.stock += ["--conf", f"isonomy.framework={name}"]


def _servers(parsed: RunArguments, workers: int) -> list[str]:
    """Check the options of parameter servers; returns notes."""
    given = parsed.values
    number, resources = parsed.value("num_ps", "0").strip(), parsed.value("ps_resources")
    if not re.fullmatch(r"[0-9]{1,4}", number):
        raise UsageError(f"--num_ps {number}: must be a whole number")
    framework = parsed.conf.get("framework", "tensorflow")
    if framework == "mxnet" and int(number):
        raise UsageError(f"--num_ps: {NO_MXNET_SERVERS}")
    if int(number) == 0:
        if framework == "mxnet" and workers > 1:
            raise UsageError(f"--framework mxnet --num_workers {workers}: {NO_MXNET_SERVERS}")
        idle = next((name for name in ("ps_resources", "ps_launch_cmd") if name in given), None)
        return [f"note: --{idle}: no parameter servers without --num_ps"] if idle else []
    if framework not in ("tensorflow", "command"):
        raise UsageError(
            f"--num_ps: not with --framework {framework}; parameter servers are TensorFlow's (ParameterServerStrategy)"
        )
    if workers < 2:
        raise UsageError(f"--num_ps {number}: needs at least 2 workers (--num_workers), as Submarine requires")
    if "ps_resources" not in given:
        raise UsageError("--ps_resources is absent: what each server needs, for example memory=1G,vcores=1")
    _resources("ps_resources", resources)
    if resources_of(resources).get("gpu", "").strip("0"):
        raise UsageError("--ps_resources gpu: parameter servers run without GPUs; leave it out")
    return []


def resources_of(text: str) -> dict[str, str]:
    """`memory=2G,vcores=2,gpu=1` as name -> value; the longer names count as the short ones."""
    pairs = (pair.strip().partition("=") for pair in text.split(","))
    return {name.removeprefix("yarn.io/").removesuffix("-mb"): value.strip() for name, _, value in pairs}


def _resources(option: str, text: str) -> None:
    example = "memory=2G,vcores=2,gpu=1" if option == "worker_resources" else "memory=1G,vcores=1"
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        if name not in RESOURCES:
            hint = suggest(name, RESOURCES, otherwise="known are memory, vcores and gpu")
            hint = f"write {name.strip()}= without blanks" if name.strip() in RESOURCES else hint
            raise UsageError(f"--{option} {name}: unknown; {hint}")
        wanted = r"[0-9]+(\.[0-9]+)?\s*[kKmMgGtT]?[iI]?[bB]?" if name.startswith("memory") else r"[0-9]+"
        if not equals or not re.fullmatch(wanted, value.strip()):
            raise UsageError(f"--{option} {pair.strip()}: write for example {example}")
        unit = value.strip().lstrip("0123456789. ")
        if name.startswith("memory") and unit.upper() not in ("", "M", "G"):
            number, letter = value.strip().removesuffix(unit).strip(), unit[0].upper()
            write = f"write {name}={number}{letter}" if letter in "MG" else f"write for example {name}=2G"
            raise UsageError(f"--{option} {pair.strip()}: the units are M and G; {write}")
        if name.startswith("memory") and value.strip().isdecimal() and int(value) < LEAST_MB:
            raise UsageError(f"--{option} {pair.strip()}: that is {value.strip()} MB; write {name}={value.strip()}G")
    if "memory" not in resources_of(text):
        raise UsageError(f"--{option}: memory is absent; write for example {example}")


def _workers(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text.strip()) or int(text) < 1:
        raise UsageError(f"--num_workers {text}: must be a whole number, at least 1")
    return int(text)


def _reachable(option: str, path: str) -> None:
    """Refuse outputs elsewhere than on HDFS, and a NameNode not known here; a name without a port is a nameservice."""
    place = urlsplit(path)
    if option != "input_path" and place.scheme not in ("", "hdfs", "viewfs", "webhdfs", "swebhdfs"):
        raise UsageError(f"--{option} {path}: results are written to the cluster's HDFS; give a path there")
    try:
        if place.scheme == "hdfs" and place.port:
            socket.getaddrinfo(place.hostname, place.port)
    except (OSError, ValueError):
        raise UsageError(f"--{option} {path}: no host {place.hostname} is known here") from None


def _environment(pairs: list[str]) -> None:
    for pair in pairs:
        name = pair.partition("=")[0]
        if name in SET_BY_US or name.startswith("ISONOMY_"):
            raise UsageError(f"--env {name}: this variable is set by Isonomy, leave it out")


def _keras(parsed: RunArguments, workers: int) -> list[str]:
    """Refuse Keras 3's `fit` on several machines, or limit jobs to one machine; returns notes."""
    env = dict(pair.partition("=")[::2] for pair in parsed.values.get("env", []))
    several = env.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") or env.get("KERAS_BACKEND") == "jax"
    if parsed.conf.get("framework") == "keras" and workers > 1 and not several:
        raise UsageError(
            "--framework keras --num_workers: Keras 3 cannot fit over several workers on TensorFlow; add --env"
            " TF_USE_LEGACY_KERAS=1 (package tf_keras) or --env KERAS_BACKEND=jax, or use one worker with more GPUs"
        )
    if parsed.conf.get("framework") != "keras" or several or gpus_of_job(parsed, most=True) < 2:
        return []
    within = parsed.conf.get("within")
    if within == "rack":
        raise UsageError("--within rack: Keras 3 cannot fit over several machines; write --within machine")
    if within is None:
        add_conf(parsed, "within", "machine")
        return ["note: Keras 3 cannot fit over several machines: each job is kept on one (--within machine)"]
    return []


def _spread(parsed: RunArguments, workers: int, session: bool) -> list[str]:
    """Keep a job of one worker on one machine if its script would not know of other machines; returns notes."""
    gpus, within = gpus_of_job(parsed, most=True), parsed.conf.get("within")
    try:
        parts = segments_of(parsed.conf.get("segments", ""), gpus_of_job(parsed))[0] if gpus else 0
    except ValueError as e:
        raise UsageError(str(e)) from e
    if gpus < 2 or workers > 1:
        return []
    if within is None and not session and not parts:
        add_conf(parsed, "within", "machine")
        return [
            "note: the script has no isonomy session, so each job stays on one machine; --within cluster: it may"
            f" run on several at once (WORLD_SIZE 1 to {gpus})"
        ]
    if within in (None, "rack", "cluster"):
        where = "machines of one rack" if within == "rack" else "machines"
        return [
            f"note: a job's {gpus} GPUs may lie on several {where}, on each of which the script runs: WORLD_SIZE is"
            f" 1 to {gpus} (--within machine: always 1)"
        ]
    return []


def gpus_of_job(parsed: RunArguments, most: bool = False) -> int:
    """The fewest GPUs of a job, or the most; 0 where a spec file says it or an option is malformed, which is reported
    elsewhere."""
    of_worker = resources_of(parsed.value("worker_resources")).get("gpu", "0")
    try:
        workers = int(parsed.value("num_workers", "1"))
        return gpus_range(parsed.conf.get("gpus_per_job", ""))[most] or workers * int(of_worker)
    except ValueError:
        return 0


def _direction(parsed: RunArguments) -> list[str]:
    """A note if the metric's name suggests the opposite direction."""
    metric, mode = parsed.conf.get("metric", ""), parsed.conf.get("mode", "")
    small = re.search(r"(?:^|[_/.-])(?:loss|error|err|mae|mse|rmse|perplexity|ppl|wer|cer)$", metric)
    large = re.search(r"(?:^|[_/.-])(?:acc|accuracy|f1|auc|precision|recall|bleu)$", metric)
    if small and mode == "max":
        return [f"note: --mode max: the job with the largest {metric} is taken for the best"]
    if large and mode == "min":
        return [f"note: --mode min: the job with the smallest {metric} is taken for the best"]
    return []


def _localizations(pairs: list[str]) -> dict[str, Path | None]:
    """{name in the containers: local path, or None if it is not local}."""
    found: dict[str, Path | None] = {}
    sources: dict[str, str | Path] = {}
    for pair in pairs:
        source, colon, target = pair.rpartition(":")
        if not colon or re.fullmatch(r"[a-z0-9+.-]+://[^:/]*(:[0-9]+)?(/[^:]*)?", pair):
            raise UsageError(f"--localization {pair}: write {pair}:., or {pair}:./NAME for another name")
        target = target.removesuffix(":rw").removesuffix(":ro")
        if target.startswith("/"):
            raise UsageError(f"--localization {pair}: an absolute target needs a Docker mount; write ./name")
        remote = re.match(r"[a-z0-9+.-]+://", source) and not source.startswith("file:")
        here = None if remote else Path(source.removeprefix("file://").removeprefix("file:"))
        if here is not None and not here.exists():
            raise UsageError(f"--localization {source}: no such file or folder here")
        if target not in (".", "./") and not target.startswith("./"):
            raise UsageError(f"--localization {pair}: write {source}:./{target}")
        name = target.removeprefix("./").strip("/")
        name = name if name not in ("", ".") else Path(source).name
        if name in ("", ".."):
            raise UsageError(f"--localization {pair}: the folder needs a name there; write for example {source}:./code")
        if odd := re.search(r"[$`\"\\\n]", name):
            raise UsageError(f"--localization {pair}: YARN cannot make a file with {odd[0]!r} in its name; rename it")
        if (other := sources.setdefault(name, here or source)) != (here or source):
            raise UsageError(f"--localization {source}: {other} has this name, too; write {source}:./NAME for another")
        found[name] = here
    return found
