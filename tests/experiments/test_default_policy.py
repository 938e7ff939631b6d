"""The default policy's experiment, small: the comparison, and the search for a lie that pays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from pycontrol.lab import clusters
from pycontrol.lab.default_policy.lie_gains import measured, probes
from pycontrol.lab.default_policy.lie_search import WorkLie, best_lie, lies
from pycontrol.lab.default_policy.loans import loans
from pycontrol.lab.default_policy.promise import (
    COLUMNS,
    OURS,
    VARIANTS,
    _claims,
    _kept,
    _promises,
    _ratio,
    _table,
    _to_bound,
    scenes,
)
from pycontrol.lab.default_policy.unmanaged import unmanaged
from pycontrol.lab.default_policy.victims import victims
from pycontrol.lab.kit import Setup
from pycontrol.lab.runs import simulate
from pycontrol.lab.themis.sweeps import Scene, measure
from pycontrol.simulation.simulation_settings import HONEST, Misreport, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

SMALL = Scene("w1", apps=4, faster=8.0)
QUICK = Setup(quick=True, processes=1)


def test_lies_are_told_alone_and_in_pairs() -> None:
    few, all_ = lies(True), lies(False)
    assert not [lie.name for lie in all_ if lie.said == HONEST and not (lie.padded or lie.agentless)]
    assert set(few) < set(all_)
    assert len({replace(lie, name="") for lie in all_}) == len({lie.name for lie in all_}) == len(all_)
    assert {"work x 3, total x 0.5", "total x 0.9 by two apps"} < {lie.name for lie in all_}
    said = {field for lie in all_ if lie.liars == 2 for field, x in asdict(lie.said).items() if x != 1}
    assert said >= {"slowdown", "work", "total", "elapsed", "loss"}


def test_what_a_liar_submits() -> None:
    machines = clusters.cluster("2x4")
    honest = TraceApp("a", 0.0, 2, ((600.0, 600.0), (300.0,)))
    padded = WorkLie("", padded=True).told(honest, machines)
    assert padded.phases == ((600.0, 600.0, 2.0, 2.0), (300.0,))
    assert WorkLie("", agentless=True).told(honest, machines).agentless
    large = replace(honest, gang_gpus=8)
    assert WorkLie("", agentless=True).told(large, machines) == large, "no machine is large enough for its gang"
    both = WorkLie("", padded=True, agentless=True).told(honest, machines)
    assert both.agentless
    assert both.phases == padded.phases


@pytest.mark.parametrize(("name", "spread", "cases"), [("alike", 0.01, 8), ("costs", 0.3, 8), ("unlike", 0.3, 1000)])
def test_a_lie_is_measured_until_it_is_known_what_it_gains(name: str, spread: float, cases: int) -> None:
    mean = 1.5 if name == "costs" else 1.0

    def told(seeds: Sequence[int]) -> list[tuple[float, float]]:
        return [(mean + spread * (-1) ** k, 1.0) for _ in seeds for k in range(4)]

    found = measured(QUICK, name, told, batch=2, most=1000)
    assert found.n == cases


def test_all_kinds_of_lies_are_measured() -> None:
    names = set(probes(Setup(processes=1)))
    assert {"width x 2", "padded, no Agent", "speed x 3 on a GPU type", "total x 0.5 by two apps"} < names
    assert sum(name.startswith("split into") for name in names) == 6


@pytest.mark.parametrize("lie", [Misreport(), Misreport(width=2.0), Misreport(width=0.5)])
def test_apps_of_all_kinds_end_in_a_mixed_cluster(lie: Misreport) -> None:
    """Without Agents, with more or fewer gangs than they have jobs: all work is done, and once."""
    phases = ((900.0,) * 3, (300.0,))
    apps = [TraceApp(f"a{k}", 10.0 * k, 2, phases, user=f"u{k}", agentless=k % 2 == 1) for k in range(6)]
    settings = SimulationSettings(lies=dict.fromkeys(("a0", "a2"), lie))
    result = simulate(Workload("w", tuple(apps)), clusters.cluster("2x4"), "isonomy", settings)
    for a in result.apps:
        assert a.finished_s is not None
        assert a.work_done_gpu_s == pytest.approx(3000.0)
        assert a.gpu_s >= 3000.0


def test_who_has_no_agent_is_compared_with_having_one() -> None:
    findings = unmanaged(Setup(quick=True, seeds=1, processes=1))
    assert [row[2] for row in findings.tables[0].rows] == [24, 12, 12]
    assert findings.values["gain"] > 0.9


def test_with_regard_to_lost_work_less_of_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[victims.__module__], "EVERY_MIN", (20,))
    findings = victims(Setup(quick=True, seeds=3, processes=1))
    before, now = (sum(float(row[k]) for row in findings.tables[0].rows) for k in (1, 2))
    assert 0 < now < before


def test_what_loans_lose_is_part_of_what_all_jobs_lose() -> None:
    findings = loans(QUICK)
    (table,) = findings.tables
    for _, _, used, lost, *by_cause, _ in table.rows:
        assert 0 < sum(map(float, by_cause)) <= float(lost) + 0.2 < float(used)
    assert [len(row) for row in table.rows] == [len(table.columns)] * 3


def test_a_lie_is_found_on_some_seeds_and_confirmed_on_others() -> None:
    gain = best_lie(QUICK, SMALL, OURS, range(2), liars=2, few=True)
    assert gain.tried == len(lies(True))
    assert (gain.searched.n, gain.confirmed.n) == (2, 2)
    assert gain.searched.mean <= 1, "lies about loss change nothing, so none can be the best of all and cost"
    assert gain.percent <= gain.percent_most


def test_every_policy_is_compared_in_one_table() -> None:
    runs = [measure(QUICK, SMALL, VARIANTS, 1, 1)]
    ratios = {m: {v.label: _ratio(runs, v.label, m) for v in VARIANTS} for m in COLUMNS}
    assert all(ratios[m][OURS.label].mean == 1 for m in COLUMNS)
    gain = best_lie(QUICK, SMALL, OURS, range(1), liars=1, few=True)
    rows = _table(ratios, [gain], runs).rows
    assert [r[0] for r in rows] == [v.label for v in VARIANTS]
    assert len(_claims(ratios, [gain])) == 6
    kept = {v.label: _kept(runs, v.label) for v in VARIANTS}
    bound = {v.label: _to_bound(runs, v.label) for v in VARIANTS}
    assert all(0 <= p.kept <= 1 and p.apps == 4 for p in kept.values())
    assert all(b.mean >= 1 for b in bound.values()), "nobody beats the bound"
    assert len(_promises(kept, bound)) == 2


def test_quick_runs_take_fewer_settings() -> None:
    assert len(scenes(QUICK)) == 4
    assert len(scenes(Setup(processes=1))) >= 12
