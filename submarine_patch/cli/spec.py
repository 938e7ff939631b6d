"""Checks a YAML spec (`-f FILE`) before the stock command line, which answers mistakes with a stack trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pycontrol.words import suggest
from submarine_patch.cli.checks import read_yaml
from submarine_patch.cli.errors import UsageError

_ROLE: dict[str, Any] = dict.fromkeys(
    ("resources", "replicas", "launch_cmd", "docker_image", "envs", "localizations", "mounts")
)
_KEYS: dict[str, Any] = {
    "spec": dict.fromkeys(("name", "job_type", "framework")),
    "configs": dict.fromkeys(
        ("docker_image", "input_path", "saved_model_path", "checkpoint_path", "quicklinks", "wait_job_finish",
         "envs", "localizations", "mounts")
    ),
    "roles": {"worker": _ROLE, "ps": _ROLE, "scheduler": _ROLE},
    "scheduling": {"queue": None},
    "security": dict.fromkeys(("keytab", "principal", "distribute_keytab")),
    "tensor_board": dict.fromkeys(("docker_image", "resources")),
}  # fmt: skip
"""The keys that Submarine 0.6.0 knows (its class YamlConfigFile); None: the value is not checked."""


def check_spec(file: Path) -> None:
    """Raise a one-line UsageError for a file that cannot be read, is not YAML or has an unknown key."""
    _check(f"-f {file}: ", "", read_yaml(file, "-f "), _KEYS)


def _check(where: str, path: str, value: object, known: Mapping[str, Any]) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{where}{path or 'a spec'} must be a mapping with {', '.join(known)}")
    for given, below in value.items():
        name = f"{path}.{given}" if path else str(given)
        key = re.sub("([A-Z])", lambda m: f"_{m[1].lower()}", str(given))  # it reads inputPath as input_path
        if key not in known:
            raise UsageError(f"{where}{name}: unknown key; {suggest(key, known)}")
        if known[key] is not None:
            _check(where, name, below, known[key])
