"""The search for splits and merges that pay, small."""

from __future__ import annotations

import pytest

from pycontrol.lab.default_policy import splits
from pycontrol.lab.kit import Setup
from pycontrol.lab.themis.sweeps import Scene, variant
from pycontrol.simulation.trace_apps import TraceApp

QUICK = Setup(quick=True, processes=1)
SMALL = [(Scene("w1", apps=5, faster=8.0), 1)]


def test_pieces_have_the_jobs_of_the_whole() -> None:
    app = TraceApp("a", 100.0, 2, ((1.0, 2.0, 3.0, 4.0, 5.0), (6.0,)))
    pieces = splits.Pattern(3, 0.5).of(app, 60.0)
    assert [p.phases for p in pieces] == [((1.0, 4.0), (6.0,)), ((2.0, 5.0),), ((3.0,),)]
    assert [p.submitted_s for p in pieces] == [100.0, 110.0, 120.0]
    assert sum(p.work_gpu_s for p in pieces) == app.work_gpu_s


def test_splitting_pays_under_a_policy_with_a_share_for_each_app() -> None:
    """Under max-min by apps, five apps have five shares."""
    cases = splits.search(QUICK, variant("max_min", "max_min"), SMALL, [splits.Pattern(5, 0.0)], ())
    assert min(c.ratio for c in cases) < 0.9


def test_the_search_compares_every_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "scenes", lambda setup: SMALL)
    found = splits.splits(QUICK)
    labels = {row[0] for row in found.tables[0].rows}
    assert {p.label for p in splits.QUICK_PATTERNS} <= labels
    assert len(found.claims) == 2
