"""Checks of a group's options, and of a spec, before anything is submitted.

The runtime (GroupOptions.java) has the same rules, since the stock command line uses it directly;
tests/submarine/options.txt tests both (docs/decisions/010).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pycontrol.words import suggest
from submarine_patch.agent import schedulers
from submarine_patch.agent.spec import CELL_TYPES, SAMPLERS, SEGMENTS, WITHIN, gpus_range, speedups_of
from submarine_patch.cli.errors import UsageError

FRAMEWORKS = ("tensorflow", "pytorch", "mxnet", "keras", "command")
"""The first three are the stock command line's."""
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
LARGEST = 2**31 - 1
SHOWN_CHARS = 256
SEARCHES = tuple(name for name in schedulers.MAKERS if name != "single")
KEYS_OF = {
    **dict.fromkeys(("search_space", "min_iterations", "jobs", "budget"), SEARCHES),
    "eta": ("hyperband", "successive_halving", "asha"),
    "target": ("curve",),
    "sampler": ("optuna",),
    "parallel": ("optuna",),
}
"""Keys that only these schedulers use."""
Rule = tuple[Callable[[str], object], str]
"""Whether a value is allowed, and what it must be."""


def _among(values: Sequence[str]) -> Rule:
    return values.__contains__, f"one of {', '.join(values)}"


def _whole(least: int) -> Rule:
    def holds(text: str) -> bool:
        return re.fullmatch(r"[+-]?[0-9]+", text) is not None and least <= int(text) <= LARGEST

    return holds, f"a whole number, at least {least}"


def _real(text: str) -> float:
    return float(text) if NUMBER.fullmatch(text) else math.nan


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _gpus(text: str) -> object:
    return _reads(gpus_range, text) if ":" in text else _whole(1)[0](text)


def _slowdown(text: str) -> bool:
    numbers = [_real(part) for part in text.split(",")]
    return len(numbers) == 3 and 1.0 <= numbers[0] <= numbers[1] <= numbers[2] < math.inf


def _below(folder: str) -> bool:
    return not folder.startswith("/") and ".." not in Path(folder).parts and folder not in (".", "./")


RULES: Mapping[str, Rule] = {
    "mode": _among(("min", "max")),
    "framework": _among(FRAMEWORKS),
    "sampler": _among(SAMPLERS),
    "within": _among(tuple(WITHIN)),
    **dict.fromkeys(
        ("mix_types", "unsaved", "tensorboard", "opportunistic", "lazy_preemption"), _among(("true", "false"))
    ),
    **dict.fromkeys(("max_iterations", "epochs", "min_iterations", "jobs", "parallel", "budget"), _whole(1)),
    **dict.fromkeys(("trial_steps", "seed", "max_retries", "priority"), _whole(0)),
    "eta": _whole(2),
    **dict.fromkeys(("iteration_s", "hours"), (lambda text: 0 < _real(text) < math.inf, "a number above 0")),
    "target": (lambda text: math.isfinite(_real(text)), "a number"),
    "gpu_bound": (lambda text: 0 <= _real(text) <= 1, "a number from 0 to 1"),
    "gpus_per_job": (_gpus, "a whole number, at least 1, or like 1:8 (the most a multiple of the fewest)"),
    "metric": (re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*").fullmatch, "the name of a reported value, like val_loss"),
    "keep_folder": (_below, "a folder below the one where the script runs"),
    "notify": (re.compile(r"https?://[^\s/@]+(/\S*)?").fullmatch, "an address like https://hooks.example.com/t1"),
    "slowdown": (
        _slowdown,
        "three numbers from 1.0 that do not fall (machine, rack, cluster), for example 1.0,1.1,1.3",
    ),
    "speedups": (lambda text: _reads(speedups_of, text), "GPU types with speeds, like K80=1,V100=3.2"),
    "segments": (re.compile(SEGMENTS).fullmatch, "like 2x4 (each on one machine), 2x4/rack, 2x4/socket or 2x4/switch"),
    "pinned": (
        lambda text: text.isprintable() and len(text) <= SHOWN_CHARS,
        f"the pinned_id of a cell, up to {SHOWN_CHARS} characters",
    ),
}
"""By key, what its value alone must be; `app_scheduler` is beside them, as packages add names."""
PARAMETER_KEYS = {
    "float": {"type", "min", "max", "log"},
    "int": {"type", "min", "max", "log"},
    "choice": {"type", "values"},
}


def check_group(conf: Mapping[str, str]) -> None:
    """Check the isonomy.* pairs (keys without the prefix); raises UsageError for the first mistake."""
    for key, (holds, what) in {"app_scheduler": _among(schedulers.names()), **RULES}.items():
        value = conf.get(key)
        if value and not holds(value):
            shown = value if value.isprintable() else repr(value)
            raise UsageError(f"isonomy.{key}={shown[:SHOWN_CHARS]}: must be {what}")
    _together(conf)
    scheduler = conf.get("app_scheduler") or "single"
    for key, names in KEYS_OF.items():
        if conf.get(key) and scheduler in schedulers.MAKERS and scheduler not in names:
            raise UsageError(f"isonomy.{key}: needs --app-scheduler {_or(names)}")
    if scheduler == "single":
        return
    for key in ("search_space", "max_iterations"):
        if not conf.get(key):
            raise UsageError(f"isonomy.{key} is absent (--{key.replace('_', '-')}): {scheduler} needs it")
    least, most = int(conf.get("min_iterations") or 1), int(conf["max_iterations"])
    if least > most:
        raise UsageError(f"isonomy.min_iterations={least}: above isonomy.max_iterations={most}")
    load_search_space(Path(conf["search_space"]))


def _together(conf: Mapping[str, str]) -> None:
    """Refuse values that exclude each other."""
    gpus, segments, cell = conf.get("gpus_per_job", ""), conf.get("segments"), conf.get("within") in CELL_TYPES
    if cell and ":" in gpus:
        raise UsageError(f"isonomy.gpus_per_job={gpus}: jobs within one {conf['within']} have as many GPUs throughout")
    if segments and (cell or ":" in gpus):
        raise UsageError(f"isonomy.segments={segments}: needs jobs of one size, in more than one socket or switch")
    if conf.get("hours") and conf.get("iteration_s") and conf.get("max_iterations"):
        raise UsageError("isonomy.hours: --iteration-s and --max-iterations say it already; leave one out")
    if conf.get("epochs") and conf.get("max_iterations"):
        raise UsageError("isonomy.epochs: --max-iterations says the end already; leave one out")
    for key in ("pinned", "lazy_preemption") if conf.get("opportunistic") == "true" else ():
        if conf.get(key) not in (None, "", "false"):
            raise UsageError(f"isonomy.{key}: an opportunistic job owns no cells; leave it or the other out")


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def read_yaml(file: Path, option: str = "", key: str = "") -> Any:
    """The content of a YAML file that an option or a key names; raises UsageError."""
    from pycontrol.config.strict_yaml import OnceEach  # the schemas beside it take time to load

    try:
        return yaml.load(file.read_text(encoding="utf-8"), OnceEach)
    except OSError as error:
        raise UsageError(f"{option}{file}: cannot be read{key}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{option}{file}: not YAML: {' '.join(str(error).split())}") from error


def load_search_space(file: Path) -> dict[str, Any]:
    """The validated parameters of a search space file; raises UsageError."""
    root = read_yaml(file, key=" (isonomy.search_space)")
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
        values = spec.get("values")
        if not isinstance(values, list) or not values:
            raise UsageError(f"{where}'values' must be a list with at least one value")
        for value in values:
            if not isinstance(value, str | int | float | bool):
                raise UsageError(f"{where}'{value}' is no plain value")
    else:
        _check_range(where, kind, spec)


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


# ---- a spec (`-f FILE`), whose mistakes the stock command line answers with a stack trace

_BOTH = ("docker_image", "envs", "localizations", "mounts")
_ROLE: dict[str, Any] = dict.fromkeys(("resources", "replicas", "launch_cmd", *_BOTH))
_PATHS = ("input_path", "saved_model_path", "checkpoint_path")
_KEYS: dict[str, Any] = {
    "spec": dict.fromkeys(("name", "job_type", "framework")),
    "configs": dict.fromkeys((*_PATHS, "quicklinks", "wait_job_finish", *_BOTH)),
    "roles": {"worker": _ROLE, "ps": _ROLE, "scheduler": _ROLE},
    "scheduling": {"queue": None},
    "security": dict.fromkeys(("keytab", "principal", "distribute_keytab")),
    "tensor_board": dict.fromkeys(("docker_image", "resources")),
}
"""The keys that Submarine 0.6.0 knows (its class YamlConfigFile); None: the value is not checked."""


def check_spec(file: Path) -> None:
    """Raise a one-line UsageError for a file that cannot be read, is not YAML or has an unknown key."""
    _check_keys(f"-f {file}: ", "", read_yaml(file, "-f "), _KEYS)


def _check_keys(where: str, path: str, value: object, known: Mapping[str, Any]) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{where}{path or 'a spec'} must be a mapping with {', '.join(known)}")
    for given, below in value.items():
        name = f"{path}.{given}" if path else str(given)
        key = re.sub("([A-Z])", lambda m: f"_{m[1].lower()}", str(given))  # it reads inputPath as input_path
        if key not in known:
            raise UsageError(f"{where}{name}: unknown key; {suggest(key, known)}")
        if known[key] is not None:
            _check_keys(where, name, below, known[key])
