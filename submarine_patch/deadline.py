"""Converts deadlines set by another machine to this machine's clock."""

from __future__ import annotations

from pycontrol.wire.v1 import agent_pb2 as pb


def on_this_clock(message: pb.Revoke | pb.Stop, now_s: float) -> float:
    """The message's deadline on this machine's clock, in Unix seconds.

    If the deadline is nearer than the message's `left_s`, the message was delayed and the deadline holds. If it has
    already passed or is farther than `left_s`, the clocks differ, and `left_s` counts from now.
    """
    left_s = message.deadline_s - now_s
    if not message.HasField("left_s") or 0.0 < left_s <= message.left_s:
        return message.deadline_s
    return now_s + message.left_s
