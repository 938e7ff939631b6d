"""Themis' small experiments, complete at tiny sizes."""

from __future__ import annotations

import dataclasses
import random

import pytest

from pycontrol.auction.partial import auction
from pycontrol.lab.clusters import uniform
from pycontrol.lab.kit import Setup
from pycontrol.lab.runs import Interval, simulate
from pycontrol.lab.themis import lies, trace_facts
from pycontrol.lab.themis import single_round as one
from pycontrol.lab.themis import small_examples as small
from pycontrol.model.auction import Bid, BidRow, gangs_by_host

TINY = Setup(quick=True, seeds=2, processes=1)


def verdicts(found: object) -> list[str]:
    return [c.verdict for c in found.claims]  # type: ignore[attr-defined]


def test_the_worked_bid_to_the_digit() -> None:
    found = small.table3(TINY)
    assert found.values["t_id_s"] == 2500
    assert {g: round(v, 4) for g, v in found.values["fluid"].items()} == {1: 4, 2: 2, 4: 1, 8: 0.5, 16: 0.34}
    assert {g: round(v, 4) for g, v in found.values["whole"].items()} == {1: 4, 2: 2, 4: 1.064, 8: 0.532, 16: 0.3453}
    assert verdicts(found) == ["holds"] * 3 + ["does not hold"] * 3, "the table is fluid; 3200 and 2160 are slips"


def test_in_figure_5_both_apps_win_if_both_bid(monkeypatch: pytest.MonkeyPatch) -> None:
    both = small.Rule("themis, f = 0", "themis", f=0.0)
    blind = [small.Rule("drf, unpacked", "drf", {"packing": "random"}), small.Rule("drf", "drf")]
    others = [small.Rule(n, "tiresias") for n in ("tiresias", "tiresias, unpacked")]
    monkeypatch.setattr(small, "figure5_rules", lambda: [small.THEMIS, both, *blind, *others])
    monkeypatch.setattr(small, "HOURS", 0.5)
    found = small.table1(TINY)
    share = found.values["on_one_machine"]
    assert all(v == pytest.approx(1) for k, v in share.items() if k.startswith("themis, f = 0 |"))
    assert share["drf | Inception-v3 first, VGG16 on 4+2+2"] == pytest.approx(0), "blind: first come, first served"
    assert found.claims[2].holds
    assert 0 < small.task_by_task(2000) < 0.1, "2 of 70 ways to halve eight GPUs"


def test_long_and_short_apps_give_the_stated_load() -> None:
    apps = [a for seed in range(20) for a in small.long_and_short(seed, 1, 60, 2.0).apps]
    last = [small.long_and_short(seed, 1, 60, 2.0).apps[-1].submitted_s for seed in range(20)]
    assert sum(a.model == "long" for a in apps) == len(apps) / 2
    assert sum(a.work_gpu_s for a in apps) / (64 * sum(last)) == pytest.approx(2.0, rel=0.1)


def test_table_5_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "READINGS", {"single jobs": (1, 8)})
    found = small.table5(TINY)
    assert found.seeds == 2
    assert found.values["single jobs | 1.5 | themis | long"] > 0
    assert len(found.claims) == 2


def test_a_liar_of_eight_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lies, "QUICK_GRID", (40,))
    monkeypatch.setattr(lies, "WORK_H", 0.5)
    found = lies.fig18(TINY)
    assert set(found.values["liar"]) == {f"{r.label} | {about} | 40" for r in lies.RULES_18 for about in lies.LIE}
    assert len(found.claims) == 8


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([(1.2, 1.1, 1.3), (0.995, 0.985, 1.005)], (True, True)),
        ([(0.995, 0.9, 1.09)], (True, False)),
        ([(0.92, 0.84, 1.01), (1.2, 1.1, 1.3)], (False, False)),
        ([(0.997, 0.995, 0.999)], (False, True)),
    ],
    ids=["no gain above 2 % left open", "a gain is not excluded", "gains, as the means go", "a small gain, surely"],
)
def test_whether_lies_pay_is_judged_by_means_and_intervals(
    ratios: list[tuple[float, float, float]], verdict: tuple[bool, bool]
) -> None:
    assert lies.never_pays([Interval(*r, 8) for r in ratios]) == verdict


def test_a_lie_reaches_the_simulation() -> None:
    work = lies.crowd(3)
    work, cluster = dataclasses.replace(work, apps=work.apps[:8]), uniform(2, 4)
    job = small.THEMIS.job(work, cluster, 1, lies={"a03": lies.LIES_MANY["work x 1/3"][1]})
    honest = simulate(work, cluster, "themis", seed=1)
    said = simulate(work, cluster, "themis", job.settings, seed=1)
    assert said.apps[3].completion_s != honest.apps[3].completion_s
    assert said.apps[3].work_gpu_s == honest.apps[3].work_gpu_s


def test_the_theorems_payment_leaves_no_lie_that_pays() -> None:
    found = [one.measure(seed, 3) for seed in range(12)]
    assert all(f["proved"] and not f["dominated"] for f in found)
    assert max(max(f["gain"]["fraction"].values()) for f in found) < 1e-9
    assert max(f["gain"]["gangs"]["row by row"] for f in found) > 0.01, "the same search finds what rounding leaves"


def test_inefficiency_is_detected() -> None:
    apps, market = one.round_of(1)
    bids = [a.bid(market) for a in apps]
    free_for_all = auction(bids, market, random.Random(1))
    assert not one.dominated(bids, market, free_for_all.wins)
    silent = [Bid(b.app_id, b.rho_nothing) for b in bids]
    nothing = auction(silent, market, random.Random(1))
    assert one.dominated(bids, market, nothing.wins), "everybody could have something"


def test_envy_is_detected() -> None:
    apps, market = one.round_of(2)
    poor, rich = apps[0], apps[1]
    row = BidRow(0.5, (), 1, rich.gang_gpus)
    outcome = auction([Bid(poor.app_id, 5.0), Bid(rich.app_id, 5.0, (row,))], market, random.Random(0))
    mine = one.best_value(poor, {}, market.topology)
    others = one.best_value(poor, gangs_by_host(outcome.wins[rich.app_id].gangs), market.topology)
    assert one.envy([poor, rich], outcome, market.topology, False) == pytest.approx(max(0.0, others / mine - 1))


def test_overheads_end_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(trace_facts, "CELLS", {(16, 4): (1, 1)})
    monkeypatch.chdir(str(tmp_path))
    found = trace_facts.overheads(TINY)
    assert verdicts(found)[2:] == ["not tried", "not tried"], "there is no demo here"
    trace_facts.DEMO.parent.mkdir(parents=True)
    trace_facts.DEMO.write_text(
        '{"allocation_change_s": {"median": 20.0, "p95": 80.0, "n": 15},'
        ' "checkpoint_s": {"median": 0.125, "p95": 0.5, "n": 40}}'
    )
    found = trace_facts.overheads(TINY)
    assert verdicts(found)[2] == "does not hold", "the tail is longer"
    assert found.claims[3].ours == "0.12 s (0.5 s)"


def test_facts_from_the_generator_alone(tmp_path: object) -> None:
    found = trace_facts.facts(Setup(quick=True, seeds=1, processes=1, data=tmp_path))  # type: ignore[arg-type]
    assert found.values["Workload 1, generated"]["apps"] == [85]
    assert set(verdicts(found)) == {"not tried"}, "claims are held against public traces only"
