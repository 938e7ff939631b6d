"""A kept result is stale only where its experiment decides or finds something else: 15 of 15 planted changes show, and
code that was only written differently does not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pycontrol.lab import catalogue, claims, provenance
from pycontrol.lab.experiment_command import experiment_command
from pycontrol.lab.fingerprint import TIMED, fingerprint, recorded
from pycontrol.lab.hived import example
from pycontrol.lab.kit import Setup
from pycontrol.lab.oef import fairness
from pycontrol.lab.shares import gandiva_fair_shares
from pycontrol.lab.themis import small_examples, trace_facts
from pycontrol.policies.tiresias import Tiresias
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.placer import Credit, PlacerJob, PlacerRound
from pycontrol.shares.problem import ShareProblem

FIG2, TABLE1, TABLE5, FACTS = "hived-fig2", "themis-table1", "themis-table5", "themis-facts"
OEF1, OEF4 = "oef-table1", "oef-fig4"


@functools.cache
def today(name: str) -> str:
    return fingerprint(name)


def negated(of: Callable[..., float]) -> Callable[..., float]:
    return lambda *args, **more: -of(*args, **more)


def evenly(self: Any, problem: ShareProblem) -> Any:
    return np.tile(problem.devices / len(problem.speedups), (len(problem.speedups), 1)), 0


def least_credit(self: Any, job: PlacerJob) -> list[str]:
    return by_credit(self, job)[::-1]


random_problem, by_credit = fairness._random, PlacerRound._by_credit


@dataclasses.dataclass(frozen=True)
class Planted:
    """A change: what is put where, and the experiments that it makes stale and not stale."""

    owner: Any
    name: str
    put: Any
    moves: str
    leaves: str


PLANTED = {
    "policy: tiresias serves the most attained first": Planted(Tiresias, "key", negated(Tiresias.key), TABLE5, FIG2),
    "policy: all bid": Planted(small_examples, "THEMIS", replace(small_examples.THEMIS, f=0.0), TABLE1, OEF4),
    "policy: one fewer": Planted(small_examples, "BASELINES", small_examples.BASELINES[:-1], TABLE1, FACTS),
    "shares: cooperative OEF divides evenly": Planted(OefCooperative, "solve", evenly, OEF1, FIG2),
    "shares: Gandiva_fair sells at the buyer's price": Planted(
        gandiva_fair_shares, "_price", lambda b, *_: b, OEF1, FIG2
    ),
    "placer: the least credit first": Planted(PlacerRound, "_by_credit", least_credit, OEF4, FACTS),
    "placer: credit allows everything": Planted(Credit, "allows", lambda self, gpus, gpu_type: True, OEF4, FIG2),
    "metric: the shortest delay": Planted(
        small_examples.Figure5Case, "delay", lambda self, result: min(a.completion_s for a in result.apps), TABLE1, FIG2
    ),
    "metric: twice the value": Planted(trace_facts, "_spread", lambda values: f"{2 * max(values):.3g}", FACTS, FIG2),
    "workload: half the hours": Planted(small_examples, "HOURS", 1.0, TABLE1, FIG2),
    "workload: shorter jobs": Planted(example, "LONG_S", 9_000.0, FIG2, OEF1),
    "workload: other random problems": Planted(fairness, "_random", lambda seed: random_problem(seed + 7), OEF1, FIG2),
    "interval: seen after the end": Planted(example, "REVOCATION_S", 20_000.0, FIG2, OEF1),
    "interval: leases of half the length": Planted(
        small_examples,
        "ARBITER",
        replace(small_examples.ARBITER, lease_s=small_examples.ARBITER.lease_s / 2),
        TABLE1,
        FIG2,
    ),
    "cluster: larger machines": Planted(example, "SWITCH_GPUS", 4, FIG2, FACTS),
}
"""Changes of a policy, a placer, a metric, a workload or an interval."""


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_change_makes_the_right_results_stale(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change = PLANTED[what]
    before = {name: today(name) for name in (change.moves, change.leaves)}
    monkeypatch.setattr(change.owner, change.name, change.put)
    assert fingerprint(change.moves) != before[change.moves]
    assert fingerprint(change.leaves) == before[change.leaves]


def test_code_that_only_is_written_otherwise_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    before, key = today(TABLE1), Tiresias.key
    monkeypatch.setattr(Tiresias, "key", lambda self, *args: float(key(self, *args)))
    assert fingerprint(TABLE1) == before


def test_an_experiment_that_simulates_has_its_decisions_counted() -> None:
    with recorded() as found:
        catalogue.load(FIG2)(Setup(quick=True, seeds=1, processes=1))
    assert len(found.decisions) == 2
    assert min(found.decisions) > 10


def test_it_counts_the_decisions_of_runs_that_another_experiment_made_before() -> None:
    assert fingerprint("hived-fig11-12") == fingerprint("hived-fig11-12")


def test_what_measures_times_has_no_fingerprint() -> None:
    assert set(catalogue.names()) >= TIMED
    assert {fingerprint(name) for name in TIMED} == {""}


def kept(folder: Path, **more: Any) -> claims.ClaimResult:
    found = claims.ClaimResult(
        FIG2, f"isonomy experiment {FIG2} --seeds 1", "2026-01-01", 1, "", "abc", "old", (), **more
    )
    claims.keep(found, folder)
    return found


def refreshed(results: Path) -> tuple[str, claims.ClaimResult]:
    run = CliRunner().invoke(experiment_command, ["claims", "--refresh", "--results", str(results)])
    assert run.exit_code == 0, run.output
    (found,) = claims.read(results, catalogue.names())
    return " ".join(run.output.split()), found


def test_a_result_stands_where_new_code_decides_and_finds_the_same(tmp_path: Path) -> None:
    kept(tmp_path / "results", fingerprint=today(FIG2))
    said, found = refreshed(tmp_path / "results")
    assert "decides and finds the same in small" in said
    assert (found.day, found.same) == ("2026-01-01", (provenance.code_hash(FIG2),))
    assert "0 of them stale" in said


def test_a_result_that_is_decided_otherwise_is_run_again_and_kept(tmp_path: Path) -> None:
    kept(tmp_path / "results", fingerprint="other", same=("older",))
    said, found = refreshed(tmp_path / "results")
    assert "run again" in said
    assert (found.code, found.fingerprint, found.same) == (provenance.code_hash(FIG2), today(FIG2), ())
    assert found.claims
    assert "0 of them stale" in said


def test_a_result_stands_where_its_claims_can_no_longer_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "absent"))
    before = replace(kept(folder := tmp_path / "results"), name="themis-facts", claims=(("a", "1", "1", "holds"),))
    (folder / f"{FIG2}.json").unlink()
    claims.keep(before, folder)
    said, found = refreshed(folder)
    assert "left, as fewer of its claims could be tried than before" in said
    assert found == before


def test_results_that_take_long_or_nobody_knows_how_long_are_run_again_last(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for name, wall_s in (("oef-fig1-2", 0.0), ("oef-fig6", 9.0), ("oef-vectors", 3.0)):
        claims.keep(replace(kept(folder), name=name, wall_s=wall_s), folder)
    kept(folder, fingerprint=today(FIG2))
    said = CliRunner().invoke(experiment_command, ["claims", "--refresh", "--results", str(folder)]).output
    order = [said.index(name) for name in (FIG2, "oef-vectors (1 of 3)", "oef-fig6 (2 of 3)", "oef-fig1-2 (3 of 3)")]
    assert order == sorted(order)


def test_a_result_at_full_size_is_left_unless_it_is_asked_for(tmp_path: Path) -> None:
    full = replace(kept(tmp_path / "results"), size="full")
    (tmp_path / "results" / f"{FIG2}.json").unlink()
    claims.keep(full, tmp_path / "results")
    said, found = refreshed(tmp_path / "results")
    assert "left, as it is at full size (--full)" in said
    assert found == full


def test_refresh_goes_with_claims_alone() -> None:
    run = CliRunner().invoke(experiment_command, [FIG2, "--refresh"])
    assert run.exit_code == 2
    assert "--refresh goes with `claims`" in run.output
