"""What policies ask to be remembered from round to round, by virtual cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter.facts import PolicyMemory
from pycontrol.arbiter.state import State

REMEMBERED_BY = "remembered_by"


def remember(s: State, key: str, policy: str, memory: Mapping[str, Any]) -> None:
    """Keeps what a policy wants to know next time, with the policy's name: another one's memory tells it nothing."""
    if dict(memory) != remembered(s, key, policy):
        s.record(PolicyMemory({**memory, REMEMBERED_BY: policy}, key))


def remembered(s: State, key: str, policy: str) -> dict[str, Any]:
    """What the policy of this name asked to be remembered; older journals do not tell whose it is."""
    memory = dict(s.durable.memory.get(key, {}))
    return memory if memory.pop(REMEMBERED_BY, policy) == policy else {}
