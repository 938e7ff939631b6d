"""Deadlines that another machine sets, on this machine's clock."""

from __future__ import annotations

from pycontrol.wire.v1 import agent_pb2 as pb


def on_this_clock(message: pb.Revoke | pb.Stop, now_s: float) -> float:
    """When the time that the message gives has passed; Unix seconds of this machine.

    A deadline that is nearer than its sender said is one whose message took its time. One that has passed already, or
    is farther off than said, is told by a clock that differs from this one: then the time left counts from now.
    """
    left_s = message.deadline_s - now_s
    if not message.HasField("left_s") or 0.0 < left_s <= message.left_s:
        return message.deadline_s
    return now_s + message.left_s
