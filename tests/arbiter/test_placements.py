"""Placements in progress are bounded, the rest wait in the Arbiter, and no grant lapses before it is sent."""

import heapq
import itertools
import random

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import LeaseEnded
from pycontrol.arbiter.views import workers as worker_plans
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, YarnApp
from pycontrol.policies.registry import make


class Yarn:
    """Ten machines of eight GPUs, and a plugin that needs `slow_s` for each placement, one at a time."""

    def __init__(self, slow_s: float) -> None:
        self.policy = make("isonomy")
        self.a = Arbiter(Settings(recovery_s=0.0, settle_s=0.0, lease_s=36_000.0, grant_timeout_s=60.0), self.policy)
        self.slow_s, self.now_s, self.free_s = slow_s, 0.0, 0.0
        self.ids, self.order = itertools.count(1), itertools.count()
        self.later: list[tuple[float, int, ev.Event]] = []
        self.in_flight = self.most = self.placed = 0
        nodes = tuple(Node(f"n{i}:1", f"n{i}", "r", 8) for i in range(10))
        self.say(ev.ClusterSnapshot(True, nodes, (), (), ()))

    def say(self, *events: ev.Event) -> None:
        effects = self.a.handle_all(events, self.now_s)
        ended = [f for f in self.a.take_facts() if isinstance(f, LeaseEnded)]
        assert not ended, ended[0]
        for effect in effects:
            if isinstance(effect, ev.Solve):
                plan = self.policy.decide(effect.snapshot, effect.bids, random.Random(1))
                self.say(ev.Decided(effect.snapshot.round_id, plan))
            elif isinstance(effect, ev.Place):
                self.place(effect)

    def place(self, e: ev.Place) -> None:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.free_s = max(self.free_s, self.now_s) + self.slow_s
        container = Container(f"c{next(self.ids)}", e.ask.app_id, e.node_id, e.gpus, e.lease_id, 1)
        for event in (ev.DirectiveDone(e.directive_id, True, container.container_id), ev.ContainerUp(container, True)):
            heapq.heappush(self.later, (self.free_s, next(self.order), event))

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            wake_s = self.a.next_wake_s(self.now_s)
            next_s = self.later[0][0] if self.later else until_s
            if wake_s is not None and wake_s < next_s:
                self.now_s = max(self.now_s, wake_s)
                self.say(ev.Tick())
            elif self.later:
                self.now_s, _, event = heapq.heappop(self.later)
                if isinstance(event, ev.ContainerUp):
                    self.in_flight -= 1
                    self.placed += 1
                self.say(event)
            else:
                return


def eighty_asks(slow_s: float) -> Yarn:
    """Ten machines, eight apps with asks for all 80 GPUs."""
    yarn = Yarn(slow_s)
    for k in range(8):
        app_id = f"application_1_{k:04}"
        yarn.say(
            ev.AppAdded(YarnApp(app_id, "u", "root.q", app_id, attempt_id=app_id)),
            ev.AskChanged(Ask(app_id, app_id, 1, 1, 10)),
        )
    return yarn


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bounds: 16 at first, 4 at least, 40 at most."""
    for name, value in {"WINDOW_FIRST": 12, "WINDOW_LEAST": 4, "WINDOW_MOST": 40}.items():
        monkeypatch.setattr(worker_plans, name, value)


def test_all_asks_are_served_even_by_a_slow_resource_manager(bounds: None) -> None:
    """80 placements at 4 s each take 320 s; grants must be used within 60 s of when they could be sent."""
    yarn = eighty_asks(slow_s=4.0)
    yarn.run(600.0)
    assert yarn.placed == len(yarn.a.durable.leases) == 80


def test_late_answers_reduce_the_placements_in_progress(bounds: None) -> None:
    yarn = eighty_asks(slow_s=4.0)
    yarn.run(100.0)
    assert (yarn.most, yarn.in_flight) == (13, 4)


def test_quick_answers_increase_the_placements_in_progress(bounds: None) -> None:
    yarn = eighty_asks(slow_s=0.1)
    yarn.run(100.0)
    assert yarn.placed == 80
    assert 30 <= yarn.most <= 40


def test_a_gang_larger_than_the_bound_is_placed_when_no_other_placement_is_in_progress(bounds: None) -> None:
    yarn = Yarn(slow_s=1.0)
    yarn.say(ev.AppAdded(YarnApp("a", "u", "root.q", "a", attempt_id="a")), ev.AskChanged(Ask("a", "a", 1, 1, 20)))
    yarn.run(100.0)
    assert yarn.placed == 20
