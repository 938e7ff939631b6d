"""Checks of a group's options before anything is submitted.

The runtime (GroupOptions.java) has the same rules, since the stock command line uses it directly;
tests/submarine/options.txt tests both (docs/decisions/010).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from submarine_patch.agent import schedulers
from submarine_patch.agent.spec import APP_SCHEDULERS, CELL_TYPES, SAMPLERS, SEGMENTS, WITHIN, gpus_range, speedups_of
from submarine_patch.cli.errors import UsageError

MODES = ("min", "max")
FRAMEWORKS = ("tensorflow", "pytorch", "mxnet", "keras", "command")
"""The first three are the stock command line's."""
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
METRIC = r"[A-Za-z_][A-Za-z0-9_./@-]*"
"""The name of a value that a training reports."""
LARGEST = 2**31 - 1
PIN_CHARS = 256
SEARCHES = tuple(name for name in APP_SCHEDULERS if name != "single")
KEYS_OF = {
    **dict.fromkeys(("search_space", "min_iterations", "jobs", "budget"), SEARCHES),
    "eta": ("hyperband", "successive_halving", "asha"),
    "target": ("curve",),
    "sampler": ("optuna",),
    "parallel": ("optuna",),
}
"""Keys that only these schedulers use."""
WHOLE_KEYS = {
    "max_iterations": 1,
    "epochs": 1,
    "min_iterations": 1,
    "eta": 2,
    "jobs": 1,
    "parallel": 1,
    "trial_steps": 0,
    "budget": 1,
    "seed": 0,
    "max_retries": 0,
    "priority": 0,
}
"""Least value by key."""
PARAMETER_KEYS = {
    "float": {"type", "min", "max", "log"},
    "int": {"type", "min", "max", "log"},
    "choice": {"type", "values"},
}


def check_group(conf: Mapping[str, str]) -> None:
    """Check the isonomy.* pairs (keys without the prefix); raises UsageError for the first mistake."""
    scheduler = _one_of(conf, "app_scheduler", schedulers.names()) or "single"
    _one_of(conf, "mode", MODES)
    _one_of(conf, "framework", FRAMEWORKS)
    _one_of(conf, "mix_types", ("true", "false"))
    _one_of(conf, "unsaved", ("true", "false"))
    _one_of(conf, "tensorboard", ("true", "false"))
    if conf.get("metric") and not re.fullmatch(METRIC, conf["metric"]):
        raise UsageError(f"isonomy.metric={conf['metric']}: must be the name of a reported value, like val_loss")
    folder = conf.get("keep_folder", "")
    if folder and (folder.startswith("/") or ".." in Path(folder).parts or folder in (".", "./")):
        raise UsageError(f"isonomy.keep_folder={folder}: must be a folder below the one where the script runs")
    if conf.get("notify") and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", conf["notify"]):
        raise UsageError(f"isonomy.notify={conf['notify']}: must be an address like https://hooks.example.com/t1")
    whole = {key: _whole(conf, key, least) for key, least in WHOLE_KEYS.items()}
    _gpus_per_job(conf)
    _which_gpus(conf)
    _positive(conf, "iteration_s")
    _positive(conf, "hours")
    if conf.get("hours") and conf.get("iteration_s") and conf.get("max_iterations"):
        raise UsageError("isonomy.hours: --iteration-s and --max-iterations say it already; leave one out")
    if conf.get("epochs") and conf.get("max_iterations"):
        raise UsageError("isonomy.epochs: --max-iterations says the end already; leave one out")
    _slowdown(conf)
    _one_of(conf, "sampler", SAMPLERS)
    _finite(conf, "target")
    _share(conf, "gpu_bound")
    _speedups(conf)
    for key, names in KEYS_OF.items():
        if conf.get(key) and scheduler in APP_SCHEDULERS and scheduler not in names:
            raise UsageError(f"isonomy.{key}: needs --app-scheduler {_or(names)}")
    if scheduler == "single":
        return
    for key in ("search_space", "max_iterations"):
        if not conf.get(key):
            raise UsageError(f"isonomy.{key} is absent (--{key.replace('_', '-')}): {scheduler} needs it")
    least, most = whole["min_iterations"] or 1, whole["max_iterations"] or 1
    if least > most:
        raise UsageError(f"isonomy.min_iterations={least}: above isonomy.max_iterations={most}")
    load_search_space(Path(conf["search_space"]))


def _gpus_per_job(conf: Mapping[str, str]) -> None:
    """Check gpus_per_job: a number, or a range for elastic jobs."""
    text = conf.get("gpus_per_job", "")
    if ":" not in text:
        _whole(conf, "gpus_per_job", 1)
        return
    try:
        gpus_range(text)
    except ValueError as e:
        wrong = f"isonomy.gpus_per_job={text}: must be like 4, or 1:8 (the most a multiple of the fewest)"
        raise UsageError(wrong) from e
    if conf.get("within") in CELL_TYPES:
        raise UsageError(f"isonomy.gpus_per_job={text}: jobs within one {conf['within']} have as many GPUs throughout")


def load_search_space(file: Path) -> dict[str, Any]:
    """The validated parameters of a search space file; raises UsageError."""
    try:
        root = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read (isonomy.search_space): {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    parameters = root.get("parameters") if isinstance(root, dict) else None
    if not isinstance(parameters, dict) or not parameters:
        raise UsageError(f"{file}: a search space needs 'parameters:' with at least one parameter")
    for key in root:
        if key != "parameters":
            raise UsageError(f"{file}: unknown key '{key}'; the only one is 'parameters'")
    for name, spec in parameters.items():
        _check_parameter(f"{file}: parameter '{name}': ", str(name), spec)
    return dict(parameters)


def _check_parameter(where: str, name: str, spec: object) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise UsageError(f"{where}a name has letters, digits, '_' and '-' only")
    if not isinstance(spec, dict):
        raise UsageError(f"{where}write {{type: float|int|choice, ...}}")
    kind = spec.get("type")
    if not isinstance(kind, str) or kind not in PARAMETER_KEYS:
        raise UsageError(f"{where}type is '{kind}'; it must be float, int or choice")
    for key in spec:
        if key not in PARAMETER_KEYS[kind]:
            raise UsageError(f"{where}unknown key '{key}'; {kind} has {sorted(PARAMETER_KEYS[kind])}")
    if kind == "choice":
        _check_values(where, spec.get("values"))
    else:
        _check_range(where, kind, spec)


def _check_values(where: str, values: object) -> None:
    if not isinstance(values, list) or not values:
        raise UsageError(f"{where}'values' must be a list with at least one value")
    for value in values:
        if not isinstance(value, str | int | float | bool):
            raise UsageError(f"{where}'{value}' is no plain value")


def _check_range(where: str, kind: str, spec: Mapping[str, Any]) -> None:
    least, most = (_number(where, key, kind, spec.get(key)) for key in ("min", "max"))
    if least > most:
        raise UsageError(f"{where}min {spec['min']} is above max {spec['max']}")
    log = spec.get("log", False)
    if not isinstance(log, bool):
        raise UsageError(f"{where}'log' must be true or false")
    if log and least <= 0:
        raise UsageError(f"{where}with 'log: true' min must be above 0")


def _number(where: str, key: str, kind: str, value: object) -> float:
    """A number, also from a string, because YAML reads 1e-3 as one; raises UsageError."""
    try:
        number = float(str(value)) if not isinstance(value, bool) else math.nan
    except ValueError as error:
        raise UsageError(f"{where}'{key}' must be a number, not '{value}'") from error
    if not math.isfinite(number) or (kind == "int" and number != round(number)):
        raise UsageError(f"{where}'{key}' must be a {'whole' if kind == 'int' else 'finite'} number")
    return number


def _which_gpus(conf: Mapping[str, str]) -> None:
    """Check the options that limit which GPUs a job takes, some of which exclude each other."""
    for key in ("opportunistic", "lazy_preemption"):
        _one_of(conf, key, ("true", "false"))
    _one_of(conf, "within", tuple(WITHIN))
    text, apart = conf.get("segments", ""), conf.get("within") in CELL_TYPES or ":" in conf.get("gpus_per_job", "")
    if text and (not re.fullmatch(SEGMENTS, text) or apart):
        raise UsageError(f"isonomy.segments={text}: must be like 2x4 (each on one machine) or 2x4/rack, of jobs of one"
                         " size that need no socket or switch")  # fmt: skip
    pin = conf.get("pinned", "")
    if pin and not (pin.isprintable() and len(pin) <= PIN_CHARS):
        raise UsageError(f"isonomy.pinned={pin[:64]!r}: must be the pinned_id of a cell, up to {PIN_CHARS} characters")
    if conf.get("opportunistic") == "true":
        for key in ("pinned", "lazy_preemption"):
            if conf.get(key) not in (None, "", "false"):
                raise UsageError(f"isonomy.{key}: an opportunistic job owns no cells; leave it or the other out")


def _one_of(conf: Mapping[str, str], key: str, allowed: tuple[str, ...]) -> str | None:
    value = conf.get(key)
    if value and value not in allowed:
        raise UsageError(f"isonomy.{key}={value}: must be one of {', '.join(allowed)}")
    return value


def _whole(conf: Mapping[str, str], key: str, least: int) -> int | None:
    value = conf.get(key)
    if not value:
        return None
    if not re.fullmatch(r"[+-]?[0-9]+", value) or not least <= int(value) <= LARGEST:
        raise UsageError(f"isonomy.{key}={value}: must be a whole number, at least {least}")
    return int(value)


def _real(text: str) -> float:
    return float(text) if NUMBER.fullmatch(text) else math.nan


def _positive(conf: Mapping[str, str], key: str) -> None:
    value = conf.get(key)
    if value and not 0 < _real(value) < math.inf:
        raise UsageError(f"isonomy.{key}={value}: must be a number above 0")


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _finite(conf: Mapping[str, str], key: str) -> None:
    value = conf.get(key)
    if value and not math.isfinite(_real(value)):
        raise UsageError(f"isonomy.{key}={value}: must be a number")


def _share(conf: Mapping[str, str], key: str) -> None:
    value = conf.get(key)
    if value and not 0 <= _real(value) <= 1:
        raise UsageError(f"isonomy.{key}={value}: must be a number from 0 to 1")


def _speedups(conf: Mapping[str, str]) -> None:
    value = conf.get("speedups") or ""
    try:
        speedups_of(value)
    except ValueError as error:
        raise UsageError(f"isonomy.speedups={value}: must be GPU types with speeds, like K80=1,V100=3.2") from error


def _slowdown(conf: Mapping[str, str]) -> None:
    value = conf.get("slowdown")
    if not value:
        return
    numbers = [_real(part) for part in value.split(",")]
    if len(numbers) != 3 or not 1.0 <= numbers[0] <= numbers[1] <= numbers[2] < math.inf:
        raise UsageError(
            f"isonomy.slowdown={value}: must be three numbers from 1.0 that do not fall "
            "(machine, rack, cluster), for example 1.0,1.1,1.3"
        )
