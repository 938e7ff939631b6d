"""The clock follows the machine's, forward immediately and backward by running slow; no lease ends by a step."""

from __future__ import annotations

import pytest

from pycontrol.arbiter.ledger.facts import ClockBehind
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.model import events as ev
from pycontrol.runtime.clock import SLOW, SteadyClock
from tests.arbiter.mini import SETTINGS, Mini


class Machine:
    """A machine's two clocks."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = 1e9, 50.0
        self.clock = SteadyClock(lambda: self.wall_s, lambda: self.monotonic_s)

    def passes(self, seconds: float) -> float:
        self.wall_s += seconds
        self.monotonic_s += seconds
        return self.clock.now_s()


def test_the_clock_follows_steady_time() -> None:
    m = Machine()
    assert [m.passes(s) for s in (0.0, 1.0, 2.5)] == [1e9, 1e9 + 1, 1e9 + 3.5]
    assert m.clock.step_s() == 0


@pytest.mark.parametrize("ahead_s", [0.5, 2.5, 3600.0])
def test_a_clock_set_forward_is_followed_immediately(ahead_s: float) -> None:
    """The same holds for the end of a sleep, which the monotonic clock does not count."""
    m = Machine()
    m.wall_s += ahead_s
    assert m.passes(1.0) == m.wall_s
    assert m.clock.step_s() == (ahead_s if ahead_s > 2.0 else 0.0)
    assert m.clock.step_s() == 0.0, "told once"


@pytest.mark.parametrize("back_s", [1.0, 600.0])
def test_after_a_clock_is_set_back_time_runs_slow(back_s: float) -> None:
    m = Machine()
    before_s = m.clock.now_s()
    m.wall_s -= back_s
    times = [m.passes(1.0) for _ in range(int(back_s / SLOW) + 2)]
    assert times[0] == before_s + SLOW
    assert times == sorted(times)
    assert times[-1] == m.wall_s
    assert m.clock.step_s() == 0


def test_a_clock_continues_from_the_previous_control_planes_time() -> None:
    """Otherwise times in the journal would run backwards over a restart on a machine whose clock was set back."""
    m = Machine()
    before_s = m.passes(100.0)
    m.wall_s -= 147.0
    m.clock = SteadyClock(lambda: m.wall_s, lambda: m.monotonic_s, not_before_s=before_s)
    assert m.passes(0.0) == before_s
    times = [m.passes(1.0) for _ in range(int(147.0 / SLOW) + 1)]
    assert times[0] == before_s + SLOW
    assert times[-1] == m.wall_s
    assert m.clock.step_s() == 0
    m.clock = SteadyClock(lambda: m.wall_s, lambda: m.monotonic_s, not_before_s=before_s)
    assert m.passes(0.0) == m.wall_s, "one that is behind itself holds nobody up"


def test_a_message_from_the_future_proves_a_clock_that_is_behind() -> None:
    m = Mini()
    for ahead_s, told in ((0.4, []), (7.0, [7.0]), (7.4, []), (-30.0, [0.0]), (-60.0, [])):
        m.a.handle_all([ev.ClusterTime(m.now + ahead_s)], m.now)
        facts = [f for f in m.a.take_facts() if isinstance(f, ClockBehind)]
        assert [round(f.by_s, 3) for f in facts] == told
    assert m.a.durable.behind_s == 0.0


def test_no_lease_ends_by_a_step_without_notice() -> None:
    m = Mini()
    m.start_app("a", gang=4)
    m.app("b", gang=4, work=1.0)
    m.run(SETTINGS.lease_s - SETTINGS.lead - 5)
    m.now += 3600
    m.a.handle_all([ev.ClockStepped(), ev.Tick()], m.now)
    assert len(m.held("a")) == 4
    assert not m.of(ev.Kill)
    m.run(SETTINGS.lead + 2)
    assert {x.state for x in m.a.durable.leases.of("a")} == {REVOKING}
    (told,) = {e.deadline_s for e in m.of(ev.SendRevoke) if e.app_id == "a"}
    assert told >= m.now - 2 + SETTINGS.lead - 2
