"""Deadlines between machines with different clocks."""

import pytest

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.deadline import on_this_clock

NOW = 1000.0


@pytest.mark.parametrize(
    ("deadline_s", "left_s", "here_s"),
    [
        (1020.0, 20.0, 1020.0),  # one clock
        (1012.0, 20.0, 1012.0),  # the message took 8 s
        (873.0, 20.0, 1020.0),  # the other clock is 147 s behind
        (1531.0, 20.0, 1020.0),  # 511 s ahead
        (1000.0, 0.0, 1000.0),  # at once
        (1600.0, 0.0, 1000.0),
    ],
)
def test_the_remaining_time_decides(deadline_s: float, left_s: float, here_s: float) -> None:
    for message in (pb.Stop(deadline_s=deadline_s, left_s=left_s), pb.Revoke(deadline_s=deadline_s, left_s=left_s)):
        assert on_this_clock(message, NOW) == here_s


def test_without_a_remaining_time_the_peers_deadline_counts() -> None:
    assert on_this_clock(pb.Stop(deadline_s=900.0), NOW) == 900.0
