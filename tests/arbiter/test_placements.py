"""Placements in progress are bounded, the rest wait in the Arbiter, and no grant lapses before it is sent."""

import pytest

from pycontrol.arbiter.ledger.facts import LeaseEnded
from pycontrol.arbiter.views import workers as worker_plans
from pycontrol.model import events as ev
from tests.arbiter.world import World


class Slow(World):
    """Ten machines of eight GPUs, and a plugin that needs `slow_s` for each placement, one at a time."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s, self.free_s = slow_s, 0.0
        self.in_flight = self.most = self.placed = 0
        terms = {"recovery_s": 0.0, "settle_s": 0.0, "lease_s": 36_000.0, "grant_timeout_s": 60.0}
        super().__init__("isonomy", machines=[(f"n{i}", "r", 8) for i in range(10)], **terms)

    def do_Place(self, e: ev.Place) -> None:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.free_s = max(self.free_s, self.now) + self.slow_s
        self.at(self.free_s - self.now, lambda: self.place(e))

    def place(self, e: ev.Place) -> None:
        self.in_flight -= 1
        self.placed += 1
        super().place(e)

    def check(self) -> None:
        super().check()
        ended = [f for f in self.journal if isinstance(f, LeaseEnded)]
        assert not ended, ended[0]


def eighty_asks(slow_s: float) -> Slow:
    """Ten machines, eight apps with asks for all 80 GPUs."""
    w = Slow(slow_s)
    for k in range(8):
        w.add_foreign(f"a{k}", 1, 10)
    return w


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bounds: 16 at first, 4 at least, 40 at most."""
    for name, value in {"WINDOW_FIRST": 12, "WINDOW_LEAST": 4, "WINDOW_MOST": 40}.items():
        monkeypatch.setattr(worker_plans, name, value)


def test_all_asks_are_served_even_by_a_slow_resource_manager(bounds: None) -> None:
    """80 placements at 4 s each take 320 s; grants must be used within 60 s of when they could be sent."""
    w = eighty_asks(slow_s=4.0)
    w.run(600.0)
    assert w.placed == len(w.arbiter.durable.leases) == 80


def test_late_answers_reduce_the_placements_in_progress(bounds: None) -> None:
    w = eighty_asks(slow_s=4.0)
    w.run(100.0)
    assert (w.most, w.in_flight) == (13, 4)


def test_quick_answers_increase_the_placements_in_progress(bounds: None) -> None:
    w = eighty_asks(slow_s=0.1)
    w.run(100.0)
    assert w.placed == 80
    assert 30 <= w.most <= 40


def test_a_gang_larger_than_the_bound_is_placed_when_no_other_placement_is_in_progress(bounds: None) -> None:
    w = Slow(slow_s=1.0)
    w.add_foreign("a", 1, 20)
    w.run(100.0)
    assert w.placed == 20
