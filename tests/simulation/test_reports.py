"""Honest apps are never corrected, whatever happens to them; lies about rho, work and speeds are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pycontrol.lab.clusters import racks_of, uniform
from pycontrol.lab.policies.worst_first import WorstFirst
from pycontrol.lab.themis.lies import crowd
from pycontrol.model.auction import Demand
from pycontrol.model.events import Solve
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies.registry import make
from pycontrol.policies.themis import Themis
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulated_jobs import SimApp
from pycontrol.simulation.simulation_settings import ARBITER, Fault, Misreport, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.simulation.test_engine import APPS, CLUSTER, LOSSES, SHORT, world


class Listening(Simulator):
    """Keeps what every receipt says was corrected."""

    def _solve(self, e: object) -> None:
        super()._solve(e)  # type: ignore[arg-type]
        r = self.arbiter.rounds.current
        self.found = getattr(self, "found", [])
        if r is not None and r.corrected:
            self.found.append(dict(r.corrected))


def corrected(
    workload: Workload, cluster: object, policy: object, given: SimulationSettings
) -> list[Mapping[str, str]]:
    x = Listening(workload, cluster, policy, given, 1)  # type: ignore[arg-type]
    x.run()
    return getattr(x, "found", [])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(APPS, LOSSES, st.sampled_from([Themis(), WorstFirst()]), st.sampled_from([0.0, 0.2]), st.booleans())
def test_honest_apps_are_never_corrected_under_any_faults(
    apps: list,  # type: ignore[type-arg]
    losses: list,  # type: ignore[type-arg]
    policy: object,
    error: float,
    open_leases: bool,
) -> None:
    faults = [f for at, host, for_s in losses for f in (Fault(at, host), Fault(at + for_s, host, True))]
    arbiter = dataclasses.replace(SHORT, open_leases=open_leases)
    given = SimulationSettings(arbiter=arbiter, checkpoint_every_s=50.0, faults=tuple(faults), error=error)
    assert corrected(world(apps), CLUSTER, policy, given) == []


def test_a_crowd_of_honest_apps_is_never_corrected() -> None:
    assert corrected(crowd(2), uniform(8, 4, 4), Themis(), SimulationSettings()) == []


@pytest.mark.parametrize(
    ("lie", "word"),
    [
        (Misreport(rho=2.0), "rho"),
        (Misreport(rho=0.5), "rho"),
        (Misreport(work=3.0), "work left"),
        (Misreport(elapsed=3.0), "rho"),
        (Misreport(total=0.3), "the whole work"),
    ],
)
def test_lies_are_corrected_and_only_the_liars(lie: Misreport, word: str) -> None:
    given = SimulationSettings(arbiter=ARBITER, lies={"a03": lie})
    found = corrected(crowd(2), uniform(8, 4, 4), Themis(), given)
    assert {a for x in found for a in x} == {"a03"}
    assert any(word in text for x in found for text in x.values())


def test_a_slowdown_that_workers_contradict_is_corrected() -> None:
    apps = tuple(
        TraceApp(f"a{k}", 30.0 * k, 4, ((9000.0, 9000.0),), slowdown=(1.0, 1.1, 1.2), scope=Scope.CLUSTER)
        for k in range(4)
    )
    given = SimulationSettings(arbiter=SHORT, lies={"a1": Misreport(slowdown=3.0)})
    found = corrected(Workload("t", apps), racks_of([[4, 2, 2], [2, 2]]), Themis(), given)
    assert {a for x in found for a in x} == {"a1"}
    assert any(text.startswith("S") for x in found for text in x.values())


@pytest.mark.interpreted
def test_forged_speeds_are_replaced_by_those_of_the_workers_in_oefs_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, told = SimApp.demand, {"old": 1.0, "new": 2.0}
    forged = {"old": 1.0, "new": 4.0}

    def demand(self: SimApp, now_s: float, gangs: int | None = None) -> Demand:
        said = honest(self, now_s, gangs)
        return dataclasses.replace(said, speedups=forged) if self.trace.app_id == "a1" else said

    monkeypatch.setattr(SimApp, "demand", demand)
    machines = [Machine(f"{t}{k}", "r", 2, t) for t in told for k in range(4)]
    jobs = (6, 14, 6)  # the second app has both types once the others have ended
    apps = tuple(TraceApp(f"a{k}", 0.0, 1, ((4000.0,) * n,), user=f"u{k}", speedups=told) for k, n in enumerate(jobs))
    used: dict[str, list[float]] = {}

    class Watched(Simulator):
        def _solve(self, e: Solve) -> None:  # type: ignore[override]
            for v in e.snapshot.apps:
                used.setdefault(v.app_id, []).append(v.demand.speedups["new"])
            super()._solve(e)

    policy = make("oef")
    Watched(Workload("t", apps), Topology.of(machines), policy, SimulationSettings(arbiter=SHORT), 1).run()
    assert {*used["a0"], *used["a2"]} == {2.0}
    assert used["a1"][0] == 4.0, "before its workers ran on both types"
    assert used["a1"][-1] == pytest.approx(2.0, rel=0.05)
    assert 4.0 not in used["a1"][used["a1"].count(4.0) :], "once seen, the forged speed does not count again"
