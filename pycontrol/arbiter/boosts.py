"""Boosts: an administrator puts an app, or all apps of a user, first in its virtual cluster for a time.

A boosted app has a priority above all of YARN's, which every policy honours. So limits hold, GPUs of other virtual
clusters stay theirs, and what runs keeps its GPUs until its leases end.
"""

from __future__ import annotations

from pycontrol.arbiter.ledger.facts import Boosted
from pycontrol.arbiter.state import Clerk, Holdings

APP, USER = "app ", "user "
"""Prefixes of targets."""


def boost_of(s: Holdings, app_id: str) -> Boosted | None:
    """The boost of an app, its own or its user's."""
    boosts = s.durable.boosts
    if not boosts:
        return None
    app = s.durable.apps.get(app_id) or s.cluster.apps.get(app_id)
    return boosts.get(APP + app_id) or (boosts.get(USER + app.user) if app is not None else None)


def boost(s: Holdings, clerk: Clerk, target: str, for_s: float, user: str, now_s: float) -> None:
    """Boosts a target from now on; ends its boost if `for_s` is 0."""
    clerk.record(Boosted(target, now_s + for_s, user, now_s))
    s.agents.changed(a for a, app in s.durable.live.items() if target in (APP + a, USER + app.user))
    clerk.request_round(now_s + s.settings.settle_s)


def next_end_s(s: Holdings) -> float | None:
    """When the next boost ends."""
    return min((b.until_s for b in s.durable.boosts.values()), default=None)


def expire(s: Holdings, clerk: Clerk, now_s: float) -> None:
    """Ends boosts whose time has come."""
    for target in [b.target for b in s.durable.boosts.values() if b.until_s <= now_s]:
        boost(s, clerk, target, 0.0, "", now_s)
