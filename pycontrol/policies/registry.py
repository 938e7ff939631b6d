"""All policies by name, with their options; a policy's module is imported when it is needed."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from pycontrol.model.bounds import BOUNDS, OutOfBounds, numbers_within
from pycontrol.policies.policy_port import Policy
from pycontrol.words import suggest

POLICIES: Mapping[str, str] = {
    "themis": "pycontrol.policies.themis:Themis",
    "worst_first": "pycontrol.lab.policies.worst_first:WorstFirst",
    "gandiva": "pycontrol.policies.gandiva:Gandiva",
    "tiresias": "pycontrol.policies.tiresias:Tiresias",
    "optimus": "pycontrol.lab.policies.optimus:Optimus",
    "slaq": "pycontrol.lab.policies.slaq:Slaq",
    "srtf": "pycontrol.lab.policies.srtf:Srtf",
    "srsf": "pycontrol.lab.policies.srsf:Srsf",
    "drf": "pycontrol.policies.drf:Drf",
    "max_min": "pycontrol.policies.max_min:MaxMin",
    "yarn_cs": "pycontrol.policies.yarn_cs:YarnCs",
    "isonomy": "pycontrol.policies.isonomy:Isonomy",
    "oef": "pycontrol.policies.oef:Oef",
    "gandiva_fair": "pycontrol.lab.policies.gandiva_fair:GandivaFair",
    "gavel": "pycontrol.lab.policies.gavel:Gavel",
}
"""Name -> module:class; those that only papers compare with are the laboratory's. The class is a dataclass; its fields,
except name and asks_agents, are the options."""

ENTRY_POINTS = "isonomy.policies"
"""Entry point group for policies of other distributions: name = "module:Class"."""
INSTEAD = {"queue_weights": "accounts.others.queues.QUEUE.weight", "user_weights": "accounts.others.users.USER.weight"}
"""Former options -> the key of isonomy.yaml that says the same."""
NOT_OPTIONS = frozenset({"name", "asks_agents"})


class UnknownPolicy(ValueError):
    """An unknown policy or option, or an invalid value of an option."""


@functools.cache
def others() -> Mapping[str, str]:
    """Name -> module:class, for policies of other distributions, without those named like a built-in policy."""
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {e.name: e.value for e in found if e.name not in POLICIES}


def names() -> tuple[str, ...]:
    """The names of available policies, those of other distributions last."""
    lab = importlib.util.find_spec("pycontrol.lab")
    return (*(name for name, at in POLICIES.items() if lab or ".lab." not in at), *sorted(others()))


def options(name: str) -> tuple[str, ...]:
    """The names of a policy's options; raises UnknownPolicy."""
    return _options(kind(name))


def _options(of: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(of) if f.init and f.name not in NOT_OPTIONS)


def summary(name: str) -> str:
    """One line on a policy: the first paragraph of its module's docstring."""
    return (importlib.import_module(kind(name).__module__).__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def default(name: str, option: str) -> Any:
    """The default value of a policy's option."""
    found = next(f for f in dataclasses.fields(kind(name)) if f.name == option)
    return found.default_factory() if found.default_factory is not dataclasses.MISSING else found.default


def make(name: str, /, **given: Any) -> Policy:
    """A policy with these options; raises UnknownPolicy, which lists the known names."""
    return made(name, kind(name), given)


def made(name: str, of: Any, given: Mapping[str, Any]) -> Policy:
    """A policy of this class with these options; raises UnknownPolicy, which lists the known options."""
    known = _options(of)
    for option in given:
        if option not in known:
            instead = f" any more; write {INSTEAD[option]}" if option in INSTEAD else _known(option, known)
            raise UnknownPolicy(f"{name} has no option {option}{instead}")
    try:
        numbers_within({option: value for option, value in given.items() if option in BOUNDS})
        return cast(Policy, TypeAdapter(of).validate_python(given))
    except OutOfBounds as error:
        raise UnknownPolicy(f"{name}: {error}") from error
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']})" for e in error.errors())
        raise UnknownPolicy(f"{name}: {'; '.join(lines)}") from error


def unknown(name: str) -> str:
    """The error message for an unknown policy name, with a suggestion."""
    return f"there is no policy {name}{_known(name, names())}"


def kind(name: str) -> Any:
    """The class of a policy; raises UnknownPolicy."""
    if name not in names():
        raise UnknownPolicy(unknown(name))
    module, _, of = (POLICIES.get(name) or others()[name]).partition(":")
    try:
        return getattr(importlib.import_module(module), of)
    except (ImportError, AttributeError) as error:
        raise UnknownPolicy(f"policy {name}: {module}:{of} cannot be loaded: {error}") from error


def _known(word: str, known: tuple[str, ...]) -> str:
    hint = suggest(word, known)
    return f"; {hint}" + (f" Known are {', '.join(known)}" if hint.endswith("?") else "")
