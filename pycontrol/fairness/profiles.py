"""Offline profiles: each model's speed and slowdown S(G) from a file (Themis, section 4.3.1).

models:
  vgg16:                      # measured times of one iteration on 4 GPUs, by scope
    gpus: 4
    iteration_s: {machine: 0.25, rack: 0.29, cluster: 0.41}
  inception3:                 # or the serial time and S; one of the two may be missing
    iteration_s: 1.6
    slowdown: {machine: 1.0, rack: 1.02, cluster: 1.05}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pycontrol.fairness.slowdown import rising
from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.model.topology import Scope
from pycontrol.model.value import value
from pycontrol.words import suggest

SCOPES = {"machine": Scope.MACHINE, "rack": Scope.RACK, "cluster": Scope.CLUSTER}
KEYS = ("gpus", "iteration_s", "slowdown")


class ProfileError(ValueError):
    """An invalid profile file; names the file, the key and what to write."""


@value
class OfflineProfile:
    """A model's serial seconds of one iteration (None: not profiled), and S by scope, which never falls."""

    iteration_s: float | None
    slowdown: tuple[float, float, float]


def load_profile(file: Path, model: str) -> OfflineProfile:
    """One model's profile from a YAML or JSON file; raises ProfileError."""
    try:
        root = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ProfileError(f"{file}: cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ProfileError(f"{file}: not YAML: {' '.join(str(e).split())}") from e
    models = root.get("models") if isinstance(root, dict) else None
    if not isinstance(models, dict) or not models:
        raise ProfileError(f"{file}: a profile needs 'models:' with at least one model")
    if model not in models:
        raise ProfileError(f"{file}: no model {model}; {suggest(model, models)}")
    return parse_profile(models[model], f"{file}: models.{model}")


def parse_profile(value: Any, where: str) -> OfflineProfile:
    """A profile from one model's entry in a file; raises ProfileError with a message that begins with `where`."""
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: must be a mapping with {', '.join(KEYS)}")
    for key in value:
        if key not in KEYS:
            raise ProfileError(f"{where}.{key}: unknown key; known are {', '.join(KEYS)}")
    times, s = value.get("iteration_s"), value.get("slowdown")
    if times is None and s is None:
        raise ProfileError(f"{where}: needs iteration_s, slowdown or both")
    gpus = _number(value.get("gpus", 1), f"{where}.gpus", 1.0)
    if isinstance(times, dict):
        if s is not None:
            raise ProfileError(f"{where}.slowdown: iteration_s by scope says it already; leave one out")
        return _measured(_by_scope(times, f"{where}.iteration_s", 0.0), gpus)
    declared = {} if s is None else _by_scope(s, f"{where}.slowdown", 1.0)
    slowdown = rising({scope: (x, 1.0) for scope, x in declared.items()}, SLOWDOWN_PRIOR)
    if any(not math.isclose(slowdown[scope], x) for scope, x in declared.items()):
        raise ProfileError(f"{where}.slowdown: must not fall from machine to rack to cluster")
    iteration_s = None if times is None else _number(times, f"{where}.iteration_s", 0.0) * gpus
    return OfflineProfile(iteration_s, _triple(slowdown))


def _measured(times_s: Mapping[Scope, float], gpus: float) -> OfflineProfile:
    narrowest = min(times_s)
    serial_s = times_s[narrowest] * gpus / SLOWDOWN_PRIOR[narrowest - 1]
    ratios = {scope: (t * gpus / serial_s, 1.0) for scope, t in times_s.items()}
    return OfflineProfile(serial_s, _triple(rising(ratios, SLOWDOWN_PRIOR)))


def _triple(s: Mapping[Scope, float]) -> tuple[float, float, float]:
    return s[Scope.MACHINE], s[Scope.RACK], s[Scope.CLUSTER]


def _by_scope(value: Any, where: str, least: float) -> dict[Scope, float]:
    if not isinstance(value, dict) or not value:
        raise ProfileError(f"{where}: must be a mapping with {', '.join(SCOPES)}")
    for key in value:
        if key not in SCOPES:
            raise ProfileError(f"{where}.{key}: unknown scope; known are {', '.join(SCOPES)}")
    return {SCOPES[key]: _number(x, f"{where}.{key}", least) for key, x in value.items()}


def _number(value: Any, where: str, least: float) -> float:
    """The value as a number of at least `least`, and above 0; raises ProfileError."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < least or value == 0:
        raise ProfileError(f"{where} is {value!r}: must be a number {f'of at least {least:g}' if least else 'above 0'}")
    return float(value)
