"""When a container of an unmanaged app must end: its declared time is over, or it is interactive and idle."""

from __future__ import annotations

from pycontrol.arbiter import tags
from pycontrol.arbiter.lease import ACTIVE, Lease
from pycontrol.arbiter.settings import Settings
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.value import value


@value
class Limit:
    """The time from which a lease is revoked (Unix seconds), and why."""

    at_s: float
    cause: Cause


def limit(lease: Lease, app: YarnApp | None, node: Node | None, settings: Settings) -> Limit | None:
    """The first limit of an unmanaged app's lease; None if it has none."""
    if lease.state != ACTIVE or lease.started_s is None:
        return None
    found = []
    longest_s = tags.max_s(app)
    if longest_s is not None:
        text = f"its {longest_s / 3600:g} h are over ({tags.MAX_HOURS})"
        found.append(Limit(lease.started_s + longest_s, Cause(EndReason.TIME_LIMIT, text)))
    idle = [node.idle_since_s[gpu.index] for gpu in lease.gpus if gpu.index in node.idle_since_s] if node else []
    idle_since_s = min(idle, default=None)
    if idle_since_s is not None and tags.is_interactive(app):
        text = f"interactive, and idle for {settings.interactive_idle_s:g} s"
        from_s = max(idle_since_s, lease.started_s)
        found.append(Limit(from_s + settings.interactive_idle_s, Cause(EndReason.IDLE, text)))
    return min(found, key=lambda x: x.at_s, default=None)
