"""Themis' sweeps: their claims, and two complete sweeps on small workloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pycontrol.lab.catalogue import EXPERIMENTS, load, title
from pycontrol.lab.kit import Findings, Setup
from pycontrol.lab.runs import Interval
from pycontrol.lab.themis import sweeps as themis_runs
from pycontrol.lab.themis import workloads as themis_workloads
from pycontrol.lab.themis.sweeps import Scene, claim_best, claim_within, measure, ratio_table, variant, versus
from pycontrol.simulation.trace_apps import Workload

OWN = (
    "themis-fig8",
    "themis-fig9-10",
    "themis-fig11-12",
    "themis-fig13",
    "themis-fig14",
    "themis-fig15-16",
    "themis-fig17",
    "themis-fig19",
    "themis-conventions",
    "themis-cached",
    "themis-philly",
)
REAL = themis_runs.load


def cut(monkeypatch: pytest.MonkeyPatch, apps: int, jobs: int, phases: int) -> None:
    """Workloads of few apps with few and short jobs."""

    def little(name: str | Path, seed: int, options: Mapping[str, Any]) -> Workload:
        found = REAL(name, seed, {**options, "count": apps, "shorter": 200.0})
        kept = tuple(dataclasses.replace(a, phases=tuple(p[:jobs] for p in a.phases[:phases])) for a in found.apps)
        return dataclasses.replace(found, apps=kept)

    monkeypatch.setattr(themis_runs, "load", little)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough apps for contention."""
    cut(monkeypatch, 4, 3, 2)


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload of two jobs."""
    cut(monkeypatch, 2, 1, 1)


def checked(findings: Findings) -> None:
    assert findings.claims
    assert all(c.claim and ("section" in c.paper or "Table" in c.paper) and c.ours for c in findings.claims)
    assert all(c.holds is None or isinstance(c.holds, bool) for c in findings.claims)
    assert all(len(row) == len(t.columns) for t in findings.tables for row in t.rows)
    assert all(len(s.x) == len(s.y) for f in findings.figures for s in f.series)


def test_all_are_in_the_catalogue_with_a_title() -> None:
    assert set(OWN) <= set(EXPERIMENTS)
    assert all(title(name) for name in OWN)


@pytest.mark.parametrize("name", OWN)
def test_an_experiment_has_claims_with_sources(name: str, least: None, tmp_path: Path) -> None:
    findings = load(name)(Setup(quick=True, seeds=1, processes=1, data=tmp_path))
    checked(findings)
    if name != "themis-philly":
        assert findings.conventions
        assert findings.tables
        assert findings.figures
        assert findings.seeds == 1


def test_the_figures_of_the_same_runs_share_them(small: None) -> None:
    told: list[str] = []
    setup = Setup(quick=True, seeds=1, processes=1, note=told.append)
    first = load("themis-fig11-12")(setup)
    before = len(told)
    assert before > 0
    checked(load("themis-fig13")(setup))
    assert len(told) == before
    hours = dict(zip((r[0] for r in first.tables[0].rows), (float(r[1]) for r in first.tables[0].rows), strict=True))
    assert all(h > 0 for h in hours.values())
    assert {"themis", "gandiva", "gandiva, unpacked"} <= set(hours)


def test_a_philly_trace_is_read_and_judged(tmp_path: Path) -> None:
    rows = "".join(f"{i // 3},{i},vc,{600 * (i // 3)},1,900,900\n" for i in range(12))
    (tmp_path / "philly").mkdir()
    file = tmp_path / "philly" / "themis_w1_apps_B.csv.gz"
    file.write_text("app_id,job_id,vc,submit_elapsed_s,num_gpus,exec_duration_s,gpu_seconds\n" + rows)
    findings = themis_workloads.philly(Setup(quick=True, seeds=1, processes=1, data=tmp_path))
    checked(findings)
    assert [c.holds is None for c in findings.claims] == [False]


def test_claims_are_decided_by_the_ratios() -> None:
    sure, unsure = Interval(2.5, 2.3, 2.7, 8), Interval(1.1, 0.9, 1.3, 8)
    assert claim_best("a", "section 1", {"x": sure, "y": unsure}).holds is True
    assert "Not told from 1 at 95 %: y." in claim_best("a", "section 1", {"x": sure, "y": unsure}).why
    assert claim_best("a", "section 1", {"x": sure, "y": unsure}, least=2.2).holds is False
    assert claim_within("a", "section 1", sure, 1.0, 2.0).holds is False
    assert claim_within("a", "section 1", unsure, 1.0, 2.0).why == "Its 95 % interval allows either answer."


def test_a_verdict_says_if_only_the_means_support_it() -> None:
    sure, unsure = Interval(2.5, 2.3, 2.7, 8), Interval(1.1, 0.9, 1.3, 8)
    assert claim_best("a", "section 1", {"x": sure}).verdict == "holds"
    assert claim_best("a", "section 1", {"x": sure, "y": unsure}).verdict == "holds on average"
    assert claim_best("a", "section 1", {"x": sure, "y": unsure}, least=2.2).verdict == "does not hold"
    assert claim_best("a", "section 1", {"y": unsure}, least=1.2).verdict == "does not hold on average"
    assert claim_within("a", "section 1", unsure, 1.0, 2.0).verdict == "holds on average"
    assert claim_within("a", "section 1", sure, 1.0, 2.0).verdict == "does not hold"


def test_ratios_are_paired_by_seed(small: None) -> None:
    runs = measure(Setup(processes=1), Scene("w1"), (variant("a", "drf"), variant("b", "drf", ties="random")), 2, 2)
    assert runs.seeds == 2
    assert versus(runs, ["a"], "a")["a"].mean == 1.0
    expected = [y / x for x, y in zip(runs.values("a", "gpu_h"), runs.values("b", "gpu_h"), strict=True)]
    assert runs.ratio("b", metric="gpu_h").mean == pytest.approx((expected[0] * expected[1]) ** 0.5)
    assert ratio_table(runs, "t", {"gpu_h": "h"}, "gpu_h").rows[0][-1] == "1"
