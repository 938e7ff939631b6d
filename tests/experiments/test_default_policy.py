"""The default policy's experiment, small: the comparison, and the search for a lie that pays."""

from __future__ import annotations

from dataclasses import asdict

from pycontrol.experiments.default_policy.lies import best_lie, lies
from pycontrol.experiments.default_policy.promise import (
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
from pycontrol.experiments.kit import Setup
from pycontrol.experiments.themis.runs import Scene, measure
from pycontrol.simulation.settings import HONEST

SMALL = Scene("w1", apps=4, faster=8.0)
QUICK = Setup(quick=True, processes=1)


def test_lies_are_told_alone_and_in_pairs() -> None:
    few, all_ = lies(True), lies(False)
    assert HONEST not in [lie.said for lie in all_]
    assert set(few) < set(all_)
    assert len({(lie.said, lie.liars) for lie in all_}) == len({lie.name for lie in all_}) == len(all_)
    assert {"work x 3, total x 0.5", "total x 0.9 by two apps"} < {lie.name for lie in all_}
    said = {field for lie in all_ if lie.liars == 2 for field, x in asdict(lie.said).items() if x != 1}
    assert said >= {"slowdown", "work", "total", "elapsed", "loss"}


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
