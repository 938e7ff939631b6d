"""The experiment on auctions with GPU types compares what it states."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.lab import catalogue
from pycontrol.lab.findings_report import Entry, markdown
from pycontrol.lab.kit import Setup
from pycontrol.lab.runs import simulate
from pycontrol.lab.themis.typed_lies import typed_lies
from pycontrol.lab.themis.types import BLIND, FAST, GAINS, SLOW, TYPED, VARIANTS, blind, cluster, workload
from pycontrol.model.auction import Bid, BidRow
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.simulation.simulated_jobs import SimApp
from pycontrol.simulation.simulation_settings import ARBITER, Misreport, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

ONE_OF_EACH = Topology.of([Machine("slow", "r", 4, SLOW), Machine("quick", "r", 4, FAST)])


def test_a_blind_bid_names_no_type_and_lies_between_them() -> None:
    rows = [
        BidRow(2.0, (), 1, 4, Scope.RACK, SLOW),
        BidRow(0.5, (), 1, 4, Scope.RACK, FAST),
        BidRow(0.5, (), 2, 4, Scope.RACK, FAST),
        BidRow(3.0, ((("n1", 4),),)),
        BidRow(1.0, (), 1, 4, Scope.CLUSTER, "", True),
    ]
    found = blind(Bid("a", 8.0, tuple(rows)), 2)
    assert {r.new_gangs: r.rho for r in found.rows} == pytest.approx({0: 3.0, 1: 1.0, 2: 2.0})
    assert {r.gpu_type for r in found.rows} == {""}


@pytest.mark.parametrize("order", [("cnn", "rnn"), ("rnn", "cnn")])
def test_the_app_that_gains_most_has_the_fast_machine(order: tuple[str, str]) -> None:
    """Two apps of one gang of four, a machine of each type. A type-blind auction decides by the apps' names."""
    apps = tuple(
        TraceApp(
            str(k),
            0.0,
            4,
            ((4 * 5000.0,),),
            user=name,
            scope=Scope.MACHINE,
            speedups={SLOW: 1.0, FAST: {"cnn": 5.0, "rnn": 1.2}[name]},
        )
        for k, name in enumerate(order)
    )
    together = SimulationSettings(arbiter=dataclasses.replace(ARBITER, f=0.0, lease_s=20_000.0))

    def fast(label: str, seed: int) -> bool:
        found = simulate(Workload("two", apps), ONE_OF_EACH, VARIANTS[label], together, seed)
        return next(a.completion_s for a in found.apps if a.user == "cnn") < 1100.0

    assert all(fast(TYPED, seed) for seed in range(6))
    assert {fast(BLIND, seed) for seed in range(6)} == {order[0] == "cnn"}


def test_all_gains_are_there_alike_and_half_of_the_gpus_are_fast() -> None:
    gains = [a.speedups[FAST] for a in workload(0, 8).apps]
    assert sorted(gains) == sorted(2 * GAINS)
    assert sorted(m.gpu_type for m in cluster().machines.values()) == 4 * [SLOW] + 4 * [FAST]


def test_it_runs_completely() -> None:
    findings = catalogue.load("typed-auctions")(Setup(quick=True, seeds=1, processes=1))
    assert len(findings.claims) == 4
    assert findings.tables[0].rows[0][-1] == 0, "all apps finish"
    assert markdown(Entry("typed-auctions", catalogue.title("typed-auctions"), findings, 0.0, True))


def test_a_forged_speed_is_of_the_faster_types_alone_and_tried_under_each_policy() -> None:
    app = SimApp(TraceApp("a", 0.0, 1, ((10.0,),), speedups={SLOW: 1.0, FAST: 2.0}), Misreport(speed=3.0))
    assert app.demand(0.0).speedups == {SLOW: 1.0, FAST: 6.0}
    assert catalogue.load("typed-lies") is typed_lies
    findings = typed_lies(Setup(quick=True, seeds=1, processes=1))
    assert len(findings.claims) == 3
    ratios = findings.values.values()
    assert len(ratios) == 9
    assert any(r != 1.0 for r in ratios), "a lie has an effect"
