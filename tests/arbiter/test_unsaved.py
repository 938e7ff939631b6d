"""Victims by lost work: what a gang would train again, as the control plane sees it."""

from __future__ import annotations

from typing import Any

import pytest

from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask
from pycontrol.model.receipt import Receipt
from pycontrol.simulation.scene import arbiter_of, picture, scene_from
from tests.arbiter.mini import Mini

SETTINGS = Settings(lease_s=600, grant_timeout_s=60, recovery_s=0, round_retry_s=5)


def training(gangs: int = 1) -> Mini:
    """An app that trains, in as many gangs of two GPUs, each on a machine of its own."""
    m = Mini("srsf", SETTINGS, [(f"n{k}", 2) for k in range(1, gangs + 1)])
    m.app("a", 2, gangs)
    m.run(1.0)
    for k, gang in enumerate(m.a.holdings.gangs_of("a")):
        plan = ev.WorkerPlan(f"w{k}", f"j{k}", tuple(gpus_in(gang)), 100 + k)
        m.send(ev.UsePlanned("a", f"u{k}", (plan,)))
        m.send(ev.AskChanged(Ask("a_1", "a", 100 + k, 2, 1)))
    for place in m.places():
        m.up(place)
    return m


def unsaved_s(m: Mini) -> list[float]:
    return [m.a.holdings.unsaved_s(gang) for gang in m.a.holdings.gangs_of("a")]


def tell(m: Mini, worker_id: str, saved_s: float, **more: Any) -> None:
    """A worker's checkpoint comes with the next message of its Agent."""
    demand = m.a.agents["a"].demand
    m.send(
        ev.ProgressReported(
            "a", Demand(2, demand.gangs, 2, 1e6, 1e6), (), steps=(ev.WorkerSteps(worker_id, 7, 0.0, saved_s=saved_s),)
        )
    )


def test_it_is_what_the_gang_trained_since_its_launch_or_the_newest_checkpoint_that_a_worker_told() -> None:
    m = training()
    begun_s = m.now
    m.run(300.0)
    assert unsaved_s(m) == [pytest.approx(m.now - begun_s)]
    (worker,) = m.a.workers.of("a")
    tell(m, worker.plan.worker_id, m.now - 100)
    assert unsaved_s(m) == [100.0]
    tell(m, worker.plan.worker_id, m.now - 200)
    assert unsaved_s(m) == [100.0], "an older one changes nothing"
    copied, _ = arbiter_of(scene_from(picture(m.a, m.now)))
    assert [copied.holdings.unsaved_s(gang) for gang in copied.holdings.gangs_of("a")] == [100.0], (
        "why-not knows it, too"
    )
    tell(m, worker.plan.worker_id, m.now + 1e6)
    assert unsaved_s(m) == [0.0]


def test_an_app_that_may_keep_one_gang_loses_the_one_that_saved_last_and_the_receipt_says_what_that_cost() -> None:
    m = training(2)
    m.run(400.0)
    saved, other = m.a.workers.of("a")
    tell(m, saved.plan.worker_id, m.now - 10)
    m.app("b", 2, 1, work=1.0)  # less work: it goes first
    while not m.a.receipts[-1].done.revoked:
        m.run(10.0)
    done = m.a.receipts[-1].done
    assert {x.gpu for x in done.revoked} == set(saved.plan.gpus)
    assert set(done.renewed) == set(other.plan.gpus)
    assert done.unsaved_gpu_s == {"a": pytest.approx(2 * (m.a.receipts[-1].at_s - saved.saved_s), abs=1)}
    assert Receipt.load(m.a.receipts[-1].dump()).done.unsaved_gpu_s == done.unsaved_gpu_s
