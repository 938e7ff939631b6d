"""A policy's memory is private: a policy that replaces it begins with none, and its rounds do not fail."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import PolicyMemory, plain
from pycontrol.arbiter.round.candidates import REMEMBERED_BY
from pycontrol.policies import registry
from tests.arbiter.mini import Mini


def played(policy: str, durable: Durable | None = None) -> Mini:
    """Plays some rounds in which two apps compete for one machine."""
    m = Mini(policy, durable=durable, epoch=1 if durable is None else 2)
    if durable is not None:
        m.send(m.snapshot())
        m.run(1)
    for name in ("a", "b"):
        m.app(name, gang=2, gangs=2)
        m.run(6)
    return m


@lru_cache
def memory_of(policy: str) -> str:
    return json.dumps(plain(played(policy).a.durable.memory))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("after", registry.names())
def test_rounds_continue_after_the_policy_was_changed(after: str, named: bool) -> None:
    for before in registry.names():
        durable = Durable()
        memory: Mapping[str, Mapping[str, Any]] = json.loads(memory_of(before))
        for key, values in memory.items():
            old = {k: v for k, v in values.items() if named or k != REMEMBERED_BY}
            durable.apply(PolicyMemory(old, key))
        m = played(after, durable)
        assert m.problems == [], before
        assert m.held("a") | m.held("b"), before
        assert all(x.get(REMEMBERED_BY) in (after, None if not named else before) for x in m.a.durable.memory.values())
