"""Pictures: readers see the Arbiter at one moment, at almost no cost to the Arbiter."""

import gc
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AllocationChanged, AppChanged, Restored
from pycontrol.arbiter.state import COPIED, Holdings
from pycontrol.arbiter.views.settings import Settings
from pycontrol.queries import explain, pictures, views
from pycontrol.queries.pictures import Camera, Pictures
from tests.web.scene import EARLY, LATE, SHELL, Scene

OWN_WAY = {"settings", "durable", "ledger", "supply", "lead_s", "event_s", "held"}
VIEWS: list[tuple[views.View, dict[str, str]]] = [
    (views.status, {}),
    (views.queue, {}),
    (views.apps, {}),
    (views.leases, {}),
    (views.rounds, {}),
    (views.audit, {}),
    *((view, {"app": app}) for view in (explain.explain, views.logs) for app in (EARLY, LATE, SHELL)),
]


def seen(a: Arbiter, now_s: float) -> list[str]:
    return [json.dumps(view(a, now_s, params), sort_keys=True) for view, params in VIEWS]


@pytest.mark.interpreted
def test_every_field_of_the_state_is_handled() -> None:
    fields = vars(Holdings(Settings(), Durable())).keys()
    assert fields - {*COPIED} == OWN_WAY


def test_views_of_a_picture_equal_those_of_the_arbiter_and_do_not_change() -> None:
    """Checks many moments with one camera, so that only changes since the last picture are copied."""
    scene, camera = Scene(run_s=1), Camera()
    world = scene.world
    for step in range(60):
        world.run(7)
        if step == 20:
            world.lose_node("n1")
        if step == 30:
            world.node_back("n1")
        if step == 40:
            world.end_app(SHELL)
        if step % 3:
            continue
        launch = AllocationChanged(LATE, "j1", world.now, 20.0 + step)
        world.arbiter.clerk.record(launch)
        picture = camera.take(world.arbiter)
        now_s = world.now
        assert picture.durable.dump() == world.arbiter.durable.dump()
        before = seen(world.arbiter, now_s)
        assert seen(picture, now_s) == before
        world.run(3)
        assert seen(picture, now_s) == before, "the picture did not move on with the Arbiter"
        assert picture.durable.dump()["apps"] == json.loads(json.dumps(picture.durable.dump()["apps"]))


class Busy:
    """A driver whose Arbiter answers only when the test lets it."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.busy, self.calls = scene, False, 0

    def call(self, fn: Callable[[Arbiter, float], Any], timeout_s: float = 5.0) -> Any:
        self.calls += 1
        if self.busy:
            raise TimeoutError
        return fn(self.scene.world.arbiter, self.scene.world.now)


def test_readers_do_not_wait_for_a_busy_arbiter(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_s = 0.25
    monkeypatch.setattr(pictures, "FRESH_S", fresh_s)
    scene = Scene(run_s=10)
    clock = [100.0]
    driver = Busy(scene)
    found = Pictures(driver, lambda: clock[0])
    driver.busy = True
    with pytest.raises(TimeoutError):
        found.newest()
    driver.busy = False
    first = found.newest()
    assert found.newest() is first, "it is fresh"
    clock[0] += fresh_s
    second = found.newest()
    assert second is not first
    clock[0] += 10
    driver.busy = True
    assert found.newest() is second, "old, and better than nothing: its time is in the view"
    driver.busy = False
    third = found.newest()
    found.expire()
    clock[0] += 0.001
    assert found.newest() is not third, "a command was given meanwhile"
    assert driver.calls == 6


def test_the_same_query_of_the_same_picture_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FRESH_S", 1e9)
    scene = Scene(run_s=10)
    one, two = scene.get("leases"), scene.get("leases")
    assert one is two
    assert scene.get("explain", app=EARLY)["app"]["app_id"] == EARLY
    assert scene.get("explain", app=LATE)["app"]["app_id"] == LATE


def test_what_one_caller_asks_for_does_not_push_out_what_all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FRESH_S", 1e9)
    scene = Scene(run_s=10)
    shared = scene.get("trends")
    for n in range(2 * pictures.ANSWERS_KEPT):
        scene.get("trends", app=f"none_{n}")
    assert scene.get("trends") is shared


@pytest.mark.parametrize("live", [False, True])
def test_a_costly_view_is_served_for_longer_and_a_command_ends_that(
    monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    monkeypatch.setattr(pictures, "VIEW_SHARE", 0.1)
    clock, cpu_s, made = [100.0], [0.0], list[float]()
    monkeypatch.setattr(pictures.time, "thread_time", lambda: cpu_s[0])
    found = Pictures(Busy(Scene(run_s=10)), lambda: clock[0])

    def costly(a: Arbiter, now_s: float) -> dict[str, Any]:
        cpu_s[0] += 0.2
        made.append(clock[0])
        return {}

    for clock[0] in (100.0, 101.0, 101.9, 102.0, 102.5):
        found.answer(("costly",), costly, live)
    assert made == [100.0, 102.0]
    found.expire()
    clock[0] = 102.6
    found.answer(("costly",), costly, live)
    assert made == [100.0, 102.0, 102.6]


def test_readers_of_one_view_wait_for_the_one_who_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FRESH_S", 1e9)
    found, made = Pictures(Busy(Scene(run_s=10)), lambda: 100.0), list[int]()
    begun, go_on = threading.Event(), threading.Event()

    def slow(a: Arbiter, now_s: float) -> dict[str, Any]:
        made.append(1)
        begun.set()
        assert go_on.wait(30)
        return {}

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(found.answer, ("slow",), slow)
        assert begun.wait(30)
        second = pool.submit(found.answer, ("slow",), slow)
        assert found.answer(("other",), lambda a, now_s: {"made": True}) == {"made": True}, "others do not wait"
        go_on.set()
        assert first.result(30) is second.result(30)
    assert made == [1]


def test_counts_of_launches_in_a_picture_are_those_of_its_moment() -> None:
    """Readers use them on their own threads, while the Arbiter continues to count."""
    scene = Scene(run_s=10)
    arbiter = scene.world.arbiter
    arbiter.clerk.record(AppChanged(EARLY, {"launched": {"j0": 1}}))
    picture = Camera().take(arbiter)
    counts = picture.durable.apps[EARLY].launches
    before = dict(counts)
    restored = Restored(arbiter.durable.kept())
    other = Durable()
    other.apply(restored)
    for durable in (arbiter.durable, other):
        durable.apply(AppChanged(EARLY, {"launched": {"j1": 1}}))
    assert picture.durable.apps[EARLY].launches is counts
    assert counts == before
    (kept,) = [a for a in restored.data["apps"] if a["app_id"] == EARLY]
    assert "j1" not in kept["launches"], "a fact is what it was when it was written"


def test_a_dropped_picture_leaves_without_the_collector_of_cycles() -> None:
    """It stops all threads, for longer the more pictures wait for it."""
    clock, driver = [100.0], Busy(Scene(run_s=10))
    found = Pictures(driver, lambda: clock[0])
    gc.collect()
    gc.disable()
    try:
        found.newest()
        some = sum(isinstance(x, Durable) and bool(x.apps) for x in gc.get_objects())
        for _ in range(5):
            clock[0] += 1
            seen(found.newest().arbiter, driver.scene.world.now)
        assert sum(isinstance(x, Durable) and bool(x.apps) for x in gc.get_objects()) == some
    finally:
        gc.enable()


def test_a_picture_that_nobody_reads_lets_go_of_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    scene = Scene(run_s=1)
    picture = pictures.Picture(Camera().take(scene.world.arbiter), scene.world.now, 0.0)
    parts = picture.arbiter
    assert parts.durable.apps
    del picture
    assert not failed
    assert not parts.durable.apps
    assert not parts.holdings.durable.apps
