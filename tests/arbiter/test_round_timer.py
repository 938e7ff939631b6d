"""When the next round may be held, by times and counts only."""

from __future__ import annotations

import pytest

from pycontrol.arbiter.views.settings import RoundTimer
from tests.arbiter.mini import Mini


@pytest.mark.parametrize(
    ("wanted", "first_end_s", "not_before_s", "due_s"),
    [
        ((), None, 0.0, None),
        ((10.0,), None, 0.0, 10.0),
        ((10.0, 7.0, 12.0), None, 0.0, 7.0),
        ((), 20.0, 0.0, 20.0),
        ((10.0,), 20.0, 0.0, 10.0),
        ((30.0,), 20.0, 0.0, 20.0),
        ((10.0,), None, 15.0, 15.0),
        ((), 10.0, 15.0, 15.0),
        ((), None, 15.0, None),
    ],
)
def test_the_next_round_is_due(
    wanted: tuple[float, ...], first_end_s: float | None, not_before_s: float, due_s: float | None
) -> None:
    timer = RoundTimer(5.0)
    for at_s in wanted:
        timer.request(at_s)
    timer.not_before_s = not_before_s
    assert timer.due_s(first_end_s) == due_s


def test_a_round_that_began_is_no_longer_requested() -> None:
    timer = RoundTimer(5.0)
    timer.request(10.0)
    timer.begun()
    assert timer.due_s(None) is None


def test_after_a_round_without_a_plan_the_next_one_waits_a_retry() -> None:
    timer = RoundTimer(5.0)
    timer.failed(100.0)
    timer.request(101.0)
    assert timer.due_s(90.0) == 105.0


def test_the_wait_after_rounds_without_effect_grows_and_is_bounded() -> None:
    timer, now_s, waits = RoundTimer(5.0), 0.0, []
    for _ in range(7):
        timer.begun()
        timer.held(now_s, moved=False, more_to_do=True, same_again=False)
        due_s = timer.due_s(None)
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = due_s
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 80.0, 80.0]
    timer.held(now_s, moved=True, more_to_do=False, same_again=False)
    timer.begun()
    timer.held(now_s, moved=False, more_to_do=True, same_again=False)
    assert timer.due_s(None) == now_s + 5.0, "a round that moved something begins the count again"


def test_leases_that_no_round_can_move_do_not_request_the_same_round_immediately() -> None:
    timer = RoundTimer(5.0)
    timer.held(100.0, moved=False, more_to_do=False, same_again=True)
    assert timer.due_s(99.0) == 105.0
    timer = RoundTimer(5.0)
    timer.held(100.0, moved=True, more_to_do=False, same_again=True)
    assert timer.due_s(99.0) == 99.0


def test_a_round_that_leaves_nothing_to_do_requests_no_other() -> None:
    timer = RoundTimer(5.0)
    timer.held(100.0, moved=True, more_to_do=False, same_again=False)
    assert timer.due_s(None) is None


def test_rounds_wait_for_apps_that_return_everything() -> None:
    timer, now_s, waits = RoundTimer(5.0), 100.0, []
    for _ in range(9):
        timer.begun()
        timer.grants_used(False, now_s)
        waits.append(timer.due_s(None))
    assert waits == [None, None, 105.0, 110.0, 120.0, 140.0, 180.0, 180.0, 180.0]
    assert not timer.grants_used(True, now_s)
    timer.begun()
    assert not timer.grants_used(False, now_s), "one that was used begins the count again"


def test_no_round_waits_after_grants_that_were_used() -> None:
    m = Mini(nodes=[("n1", 8)])
    for name in "abcdef":
        m.app(name)
        m.run(2)
        assert len(m.start(name)) == 1, name


def test_a_copy_is_independent() -> None:
    timer = RoundTimer(5.0)
    timer.request(10.0)
    other = timer.copy()
    other.request(3.0)
    other.failed(50.0)
    assert (timer.due_s(None), timer.not_before_s) == (10.0, 0.0)
