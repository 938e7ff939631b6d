"""What an app declares by YARN's application tags."""

from __future__ import annotations

from pycontrol.model.bounds import bound
from pycontrol.model.cluster import YarnApp

GANG = "isonomy.gang"
MAX_HOURS = "isonomy.max_hours"
INTERACTIVE = "isonomy.interactive"


def expects_agent(app: YarnApp) -> bool:
    """Whether the app was submitted through Isonomy's Submarine runtime, and so brings an Agent."""
    return "isonomy" in app.tags or app.application_type == "SUBMARINE"


def tagged(app: YarnApp | None, name: str) -> str | None:
    """The value of the app's tag, empty if it has none; None without the tag."""
    if app is None or not app.tags:
        return None
    found = (tag.partition("=") for tag in sorted(app.tags))
    return next((text for tag, _, text in found if tag == name), None)


def max_s(app: YarnApp | None) -> float | None:
    """The longest time that each of its containers runs, s; None if it declares none within its bounds."""
    text = tagged(app, MAX_HOURS)
    if not text:
        return None
    try:
        hours = float(text)
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
