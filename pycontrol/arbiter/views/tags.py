"""What an unmanaged app declares by YARN's application tags, and when its containers must end by that."""

from __future__ import annotations

from pycontrol.arbiter.ledger.lease import ACTIVE, Lease
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model.bounds import bound
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.value import value

GANG = "isonomy.gang"
MAX_HOURS = "isonomy.max_hours"
INTERACTIVE = "isonomy.interactive"


def tagged(app: YarnApp | None, name: str) -> str | None:
    """The value of the app's tag, empty if it has none; None without the tag."""
    found = (tag.partition("=") for tag in sorted(app.tags)) if app is not None else ()
    return next((text for tag, _, text in found if tag == name), None)


def max_s(app: YarnApp | None) -> float | None:
    """The longest time that each of its containers runs, s; None if it declares none within its bounds."""
    try:
        hours = float(tagged(app, MAX_HOURS) or "nan")
    except ValueError:
        return None
    return hours * 3600 if bound(MAX_HOURS).holds(hours) else None


def is_interactive(app: YarnApp | None) -> bool:
    """Whether people work in its containers, such as a notebook."""
    return tagged(app, INTERACTIVE) is not None


def declared(app: YarnApp | None) -> str:
    """What its tags declare, for `explain`; empty if nothing."""
    said = ["interactive"] if is_interactive(app) else []
    limit_s, hours = max_s(app), tagged(app, MAX_HOURS)
    if limit_s is not None:
        said.append(f"each container runs for at most {limit_s / 3600:g} h")
    elif hours is not None:
        said.append(f"its tag {MAX_HOURS}={hours} is ignored: it must be {bound(MAX_HOURS)}")
    return "; ".join(said)


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
    longest_s = max_s(app)
    if longest_s is not None:
        text = f"its {longest_s / 3600:g} h are over ({MAX_HOURS})"
        found.append(Limit(lease.started_s + longest_s, Cause(EndReason.TIME_LIMIT, text)))
    idle = [node.idle_since_s[gpu.index] for gpu in lease.gpus if gpu.index in node.idle_since_s] if node else []
    idle_since_s = min(idle, default=None)
    if idle_since_s is not None and is_interactive(app):
        text = f"interactive, and idle for {settings.interactive_idle_s:g} s"
        from_s = max(idle_since_s, lease.started_s)
        found.append(Limit(from_s + settings.interactive_idle_s, Cause(EndReason.IDLE, text)))
    return min(found, key=lambda x: x.at_s, default=None)
