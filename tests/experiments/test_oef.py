"""OEF's experiments: they measure what they state, and the quick ones run completely."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pycontrol.arbiter.round import rounds
from pycontrol.lab import catalogue
from pycontrol.lab.findings_report import Entry, markdown
from pycontrol.lab.kit import Findings, Setup, shown
from pycontrol.lab.oef.fairness import four
from pycontrol.lab.oef.mixes import (
    COOPERATIVE,
    GAVEL,
    GAVEL_ONE,
    MAX_MIN,
    NONCOOPERATIVE,
    envy,
    mixes,
    pareto_gain,
    problem_of,
    shortfall,
    total,
)
from pycontrol.lab.oef.observed_runs import (
    BASELINES,
    EQUAL,
    OEF,
    OEF_NONCOOPERATIVE,
    PLACERS,
    PUBLISHED,
    Run,
    SpeedupLie,
    measure,
    outcome,
)
from pycontrol.lab.oef.placers import Placed
from pycontrol.lab.oef.throughput import _against
from pycontrol.lab.runs import metric_ratio, unfinished_note
from pycontrol.lab.workloads import load
from pycontrol.model.auction import Plan, Snapshot
from pycontrol.policies.last_pass import last_pass
from pycontrol.shares.problem import ShareProblem

ALONE = Setup(quick=True, processes=1, data=Path("there-is-no-data-here"))
SPAN_S = 20 * 300.0


def run(name: str, setup: Setup = ALONE) -> Findings:
    """Runs a whole experiment and checks that it can be printed."""
    findings = catalogue.load(name)(setup)
    assert findings.claims
    assert markdown(Entry(name, catalogue.title(name), findings, 0.0, True))
    return findings


@pytest.mark.parametrize("name", ["oef-vectors", "oef-fig1-2", "oef-fig6", "oef-map"])
def test_experiments_on_shares_run_completely(name: str) -> None:
    run(name)


def test_every_printed_example_is_reproduced() -> None:
    assert all(c.holds for c in run("oef-vectors").claims)


def test_without_the_public_data_a_claim_is_not_tried_rather_than_held() -> None:
    assert mixes(ALONE) == {"paper": None}
    assert {c.holds for c in run("oef-golden").claims} == {None}


def test_a_cap_of_one_leaves_devices_idle_and_a_cap_by_demand_does_not() -> None:
    problem = problem_of("paper", None, 0, 20)
    assert GAVEL.shares(problem).sum() == pytest.approx(24)
    assert GAVEL_ONE.shares(problem).sum() == pytest.approx(20)


def test_the_searched_properties_see_violations() -> None:
    """Each measure is 0 if a property holds, and positive for a division that breaks it."""
    problem = ShareProblem.of([[1.0, 2.0], [1.0, 5.0]], [1.0, 1.0])
    greedy = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert envy(problem, greedy) > 0 < shortfall(problem, greedy)
    assert pareto_gain(problem, MAX_MIN.shares(problem)) > 0.05
    fair = COOPERATIVE.shares(problem)
    assert max(envy(problem, fair), shortfall(problem, fair), pareto_gain(problem, fair)) < 1e-7


def test_gangs_reach_about_the_estimated_throughput() -> None:
    estimated = total(_four_tenants(), COOPERATIVE.shares(_four_tenants()))
    found = outcome(Run(OEF, four(), SPAN_S, penalty=0.0))
    assert 0.85 * estimated <= found.throughput <= 1.01 * estimated
    assert found.mixed_workers == 0


def test_baselines_as_published_run_every_job_and_mix_no_types() -> None:
    """All jobs of all sizes end, though many tenants' shares are below a gang."""
    small = load("oef", 0, profile="paper", tenants=30, jobs=3, days=0.1, load=1.1)
    for placer in PUBLISHED:
        found = outcome(Run(Placed(BASELINES["Gandiva_fair"], placer), small, penalty=0.3))
        assert found.figures["unfinished"] == 0
        assert found.mixed_workers == 0


def test_the_last_pass_does_not_change_the_published_placers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's placer keeps GPUs for the tenants that are owed them; giving them out would be another placer."""
    passes: list[str] = []

    def counted(plan: Plan, s: Snapshot, *more: Any) -> Plan:
        passes.append(placer)
        return last_pass(plan, s, *more)

    monkeypatch.setattr(rounds, "last_pass", counted)
    small = load("oef", 0, profile="paper", tenants=6, jobs=3, days=0.1, load=1.1)
    for placer in PLACERS:
        outcome(Run(Placed(OEF, placer), small, penalty=0.3, until_s=2 * 3600.0))
    assert set(passes) == {"whole"}


def test_packing_improves_a_baseline() -> None:
    packed, unpacked = measure(
        ALONE, [Run(Placed(EQUAL, p), four(), SPAN_S, 0.3) for p in ("priority", "unpacked")], ""
    )
    assert packed.throughput > unpacked.throughput
    assert packed.spanning_workers < unpacked.spanning_workers


def test_there_is_no_ratio_while_jobs_are_unfinished() -> None:
    """Cut off early, the mean of the jobs that ended says nothing of the others."""
    small = load("oef", 0, profile="paper", tenants=6, jobs=3, days=0.1, load=1.1)
    whole, cut = (outcome(Run(OEF, small, until_s)).figures for until_s in (float("inf"), 3600.0))
    assert whole["unfinished"] == 0 < cut["unfinished"]
    assert metric_ratio([whole], [whole], "completion_mean_s").mean == 1.0
    for a, b in ((whole, cut), (cut, whole)):
        refused = metric_ratio([a], [b], "completion_mean_s")
        assert math.isnan(refused.mean)
        assert shown(refused) == "-"
    assert metric_ratio([whole], [cut], "gpu_h").mean > 1, "what is known of all apps may be compared"
    assert unfinished_note({"x": [whole], "y": [cut]}) == (
        f"No ratio (-) while apps are unfinished: {cut['unfinished']:.0f} under y."
    )


def test_a_liar_is_seen_as_declared_and_works_at_its_true_speed() -> None:
    honest, lied = (
        outcome(Run(OEF_NONCOOPERATIVE, four(), 2 * SPAN_S, lie=lie)) for lie in (None, SpeedupLie("u1", 2.0))
    )
    assert lied.done["u1"] < 0.9 * honest.done["u1"]
    told = _four_tenants().speedups.copy()
    told[0, 1:] *= 2.0
    true = _four_tenants()
    estimated = true.efficiency(NONCOOPERATIVE.shares(ShareProblem.of(told, true.devices)))
    assert estimated[0] < min(estimated[1:])


def test_a_ratio_to_zero_is_printed_as_two_numbers() -> None:
    assert _against((0.1, 0.0)) == "10.0% against 0.0%"


def _four_tenants() -> ShareProblem:
    vectors = {a.user: list(a.speedups.values()) for a in four().apps}
    return ShareProblem.of([vectors[u] for u in sorted(vectors)], [8.0, 8.0, 8.0])
