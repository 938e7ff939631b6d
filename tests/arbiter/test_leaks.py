"""Of an app that is gone the Arbiter keeps only its record and the receipts, which are bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any

import pytest

from pycontrol.arbiter.ledger.facts import plain
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Node
from tests.arbiter.mini import Mini

pytestmark = pytest.mark.interpreted
BOUNDED = {
    "holdings.durable.apps",
    "holdings.durable.ended",
    "holdings.durable.acts",
    "holdings.receipts",
    "receipts",
    "configured",
    "settings",
    "story",
}
"""Records of ended apps are dropped by a separate rule (test_retention)."""


def sizes(value: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, int]]:
    """The length of each collection, by its path from the Arbiter."""
    seen = seen if seen is not None else set()
    if id(value) in seen or name in BOUNDED or isinstance(value, str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, Mapping | Set | list | tuple) or hasattr(value, "popleft"):
        yield name, len(value)
        for inner in value.values() if isinstance(value, Mapping) else value:
            for _, n in sizes(inner, "", seen):
                yield f"{name}[]", n
    if type(value).__module__.startswith("pycontrol."):  # also the parts of one that is a table itself
        slots = [s for c in type(value).__mro__ for s in getattr(c, "__slots__", ())]
        for key in (*vars(value),) if hasattr(value, "__dict__") else slots:
            yield from sizes(getattr(value, key, None), f"{name}.{key}".lstrip("."), seen)


def total(m: Mini) -> dict[str, int]:
    found: dict[str, int] = {"memory": len(json.dumps(plain(m.a.durable.memory))) // 200}
    for name, n in sizes(m.a):
        found[name] = found.get(name, 0) + n
    return found


def batch(m: Mini, first: int, n: int) -> None:
    """Apps with and without an Agent arrive, run, are refused or killed, and end, each in a different way."""
    for k in range(first, first + n):
        name = f"app{k:05d}"
        if k % 3 == 0:
            m.foreign(name, 1, user=f"u{k}")
            m.run(6)
            for place in m.places():
                m.up(place, f"c{k}")
            m.send(ev.OperatorCommand("kill", name, "root"))
        else:
            m.app(name, gang=1, user=f"u{k}")
            m.run(6)
            m.use(name)
            for place in m.places():
                if k % 3 == 1:
                    m.up(place, f"c{k}")
                else:
                    m.send(ev.DirectiveDone(place.directive_id, False, "", "no"))
            jobs = tuple(ev.JobProgress("j0", "running", step, launches=step) for step in range(1, 4))
            m.send(ev.ProgressReported(name, Demand(1, 1, 1, 1.0, 1.0, 0.0), jobs, 1.0))
            m.send(ev.AgentDone(name, True))
            m.send(ev.AgentLost(name))
        m.send(ev.AppRemoved(name, "FINISHED"))
        if k % 3:  # a stream that broke meanwhile comes back
            for e in (
                ev.AgentUp(name, f"{name}_1", "asha", Demand(1, 1)),
                ev.AgentDone(name, True),
                ev.AgentLost(name),
            ):
                m.send(e)
        m.send(ev.ContainerGone(f"c{k}"))
        m.effects.clear()
        m.facts.clear()
        m.placed_before = 0
    m.run(700, step=20)


@pytest.mark.parametrize("policy", ["themis", "isonomy", "oef", "tiresias"])
def test_state_does_not_grow_with_ended_apps(policy: str) -> None:
    m = Mini(policy, Settings(lease_s=60, recovery_s=0), nodes=(("n1", 2), ("n2", 2)))
    batch(m, 0, 12)
    before = total(m)
    for first in range(12, 60, 12):
        m.run(32 * 86400, step=86400)  # budgets remember who used GPUs in a month
        batch(m, first, 12)
    grown = {name: (before.get(name, 0), n) for name, n in total(m).items() if n > before.get(name, 0) + 8}
    assert not grown


def test_apps_that_ended_while_the_plugin_was_away_leave_nothing() -> None:
    m = Mini(settings=Settings(recovery_s=0))
    before = total(m)
    for k in range(40):
        m.app(f"a{k}")
        m.send(ev.AgentLost(f"a{k}"))
        m.send(ev.OperatorCommand("kill", f"a{k}", "root"))
    m.foreign("f", 1)
    m.send(ev.ClusterLost())
    m.send(m.snapshot())
    m.run(30)
    grown = {name: (before.get(name, 0), n) for name, n in total(m).items() if n > before.get(name, 0) + 8}
    assert not grown


def test_the_measurement_detects_growth() -> None:
    m = Mini()
    before = total(m)
    m.a.agents.terminating.update(str(k) for k in range(100))
    m.a.rounds.candidates.aside.update({str(k): (0.0, "") for k in range(100)})
    after = total(m)
    assert {n for n in after if after[n] > before.get(n, 0) + 8} == {
        "holdings.agents.terminating",
        "rounds.candidates.aside",
    }


def test_state_does_not_grow_with_machines_that_left_the_cluster() -> None:
    m = Mini(settings=Settings(lease_s=60, recovery_s=0))
    m.app("a", gang=8, gangs=3)
    before: dict[str, int] = {}
    for k in range(40):
        before = total(m) if k == 20 else before
        m.send(ev.NodeUp(Node(f"s{k}:1", f"s{k}", "r", 8)))
        m.run(6)
        assert {gpu.host for gpu in m.a.durable.leases} == {f"s{k}"}
        m.send(ev.NodeDown(f"s{k}:1", ("DECOMMISSIONED", "SHUTDOWN")[k % 2]))
        m.run(1)
    grown = {name: (before.get(name, 0), n) for name, n in total(m).items() if n > before.get(name, 0) + 8}
    assert not grown
    assert m.a.cluster.machines.known.machines.keys() == {"n1"}
