"""Renders the templates of `confs`: the same for a real cluster and for dev-cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pycontrol.config import Config, ConfigError, parse
from pycontrol.config.strict_yaml import OnceEach
from pycontrol.hadoopconf.check import checked
from pycontrol.hadoopconf.names import HADOOP_VERSIONS
from pycontrol.words import suggest

FREE_FORM = frozenset(
    {
        "security.proxy_users",
        "core.racks",
        "yarn.rm_hosts",
        "isonomy.accounts",
        "isonomy.exchange",
        "isonomy.policy_options",
        "queues.leaves",
    }
)
"""Mappings that are not checked here: their keys are names, or isonomy.yaml checks them."""

Values = dict[str, Any]


@cache
def confs_dir() -> Path:
    """The folder `confs`: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_confs", package.parent / "confs"):
        if (place / "defaults.yaml").is_file():
            return place
    raise ConfigError([f"confs/defaults.yaml: not found beside {package}; install isonomy again"])


def defaults() -> Values:
    """A new copy of the documented defaults."""
    values: Values = yaml.safe_load((confs_dir() / "defaults.yaml").read_text(encoding="utf-8"))
    return values


def merge(base: Mapping[str, Any], over: Mapping[str, Any], where: str = "") -> Values:
    """`base` with the values of `over`; raises ConfigError for keys that the defaults do not have."""
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in merged:
            hint = suggest(key, merged, prefix=where and f"{where}.")
            raise ConfigError([f"{path}: unknown key, {hint}"])
        nested = isinstance(merged[key], dict) and path not in FREE_FORM
        if nested and not isinstance(value, Mapping):
            known = ", ".join(map(str, merged[key]))
            raise ConfigError([f"{path}: is a section; set one of its keys, known are {known}"])
        if not nested:
            _check_text(path, value)
            _check_kind(path, merged[key], value)
        merged[key] = merge(merged[key], value, path) if nested else copy.deepcopy(value)
    return merged


def _check_kind(path: str, default: object, value: object) -> None:
    """Check that a value has its default's type; any type if the default is None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float):
        fits, kind = number or value is None, "a number"
    elif isinstance(default, str):
        fits, kind = number or isinstance(value, str), "text"
    elif isinstance(default, dict):
        fits, kind = isinstance(value, dict), "a mapping of names"
    else:
        return
    if not fits:
        raise ConfigError([f"{path}: must be {kind} (got {value})"])


def _check_text(path: str, value: object) -> None:
    """Check that all texts of a value can be in a file: no control characters but line ends and tabs."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_text(path, name)
            _check_text(path, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_text(path, inner)
    elif isinstance(value, str) and not all(c.isprintable() or c in "\n\t" for c in value):
        raise ConfigError([f"{path}: has characters that no configuration file can hold (got {value!a})"])


def parse_set(settings: tuple[str, ...] | list[str]) -> Values:
    """`section.key=value` settings (values as YAML) as one nested mapping."""
    values: Values = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or "." not in path:
            raise ConfigError([f"--set {setting}: must be section.key=value, as in isonomy.lease_s=60"])
        try:
            value = yaml.load(text, OnceEach)
        except yaml.YAMLError as error:
            raise ConfigError([f"--set {setting}: the value is not YAML; quote it"]) from error
        section, *rest = path.split(".")
        node = values.setdefault(section, {})
        for part in rest[:-1]:
            node = node.setdefault(part, {})
        node[rest[-1]] = value
    return values


def render(over: Mapping[str, Any]) -> dict[str, str]:
    """All files by name, rendered from the defaults and `over`; isonomy.yaml is checked."""
    values = merge(defaults(), over)
    _check_choices(values)
    environment = Environment(
        loader=FileSystemLoader(confs_dir() / "templates"),
        autoescape=lambda name: bool(name) and (str(name).endswith(".xml.j2") or name == "_xml.j2"),
        undefined=StrictUndefined,
        finalize=lambda value: str(value).lower() if isinstance(value, bool) else value,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = _yaml_scalar
    files = {
        name.removesuffix(".j2"): environment.get_template(name).render(values)
        for name in environment.list_templates(filter_func=lambda n: n.endswith(".j2") and n[0] != "_")
        if _wanted(name, values)
    }
    checked(parse(files["isonomy.yaml"], Config, "isonomy.yaml"), "isonomy.yaml")
    return files


def different(files: Mapping[str, str], out: Path) -> list[str]:
    """The names of files that already exist with other contents."""
    return [name for name, text in files.items() if (out / name).exists() and _text_of(out / name) != text]


def _text_of(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def write(files: Mapping[str, str], out: Path) -> list[Path]:
    """Write the files below `out`, which is created if needed."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in files]


def _yaml_scalar(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _wanted(template: str, values: Values) -> bool:
    if template == "rack-table.txt.j2":
        return bool(values["core"]["racks"])
    if template == "container-executor.cfg.j2":
        return bool(values["nodemanager"]["executor"] == "linux")
    return True


def _check_choices(values: Values) -> None:
    choices = {
        ("yarn", "scheduler"): ("isonomy", "capacity"),
        ("nodemanager", "executor"): ("default", "linux"),
        ("yarn", "hadoop"): HADOOP_VERSIONS,
        ("security", "data_transfer_protection"): ("authentication", "integrity", "privacy"),
    }
    lines = [
        f"{section}.{key}: must be {' or '.join(allowed)} (got {values[section][key]})"
        for (section, key), allowed in choices.items()
        if str(values[section][key]) not in allowed
    ]
    for name, queue in values["queues"]["leaves"].items():
        if not isinstance(queue, dict) or set(queue) != {"capacity", "maximum"}:
            wanted = "{capacity: percent, maximum: percent}"
            lines.append(f"queues.leaves.{name}: must be {wanted} (got {queue})")
    if lines:
        raise ConfigError(lines)
