"""Policies' memory between rounds, by virtual cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter.facts import PolicyMemory
from pycontrol.arbiter.state import State

REMEMBERED_BY = "remembered_by"


def remember(s: State, key: str, policy: str, memory: Mapping[str, Any]) -> None:
    """Records a policy's memory with the policy's name, so that no other policy reads it."""
    if dict(memory) != remembered(s, key, policy):
        s.record(PolicyMemory({**memory, REMEMBERED_BY: policy}, key))


def remembered(s: State, key: str, policy: str) -> dict[str, Any]:
    """The memory of the policy of this name; empty if another policy wrote it. Old journals do not name the policy."""
    memory = dict(s.durable.memory.get(key, {}))
    return memory if memory.pop(REMEMBERED_BY, policy) == policy else {}
