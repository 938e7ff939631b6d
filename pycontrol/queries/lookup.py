"""Resolves a caller's parameters: an app by id, name or number; a node by host or YARN's node id."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import AppRecord
from pycontrol.arbiter.ledger.facts import APP, USER
from pycontrol.model.bounds import OutOfBounds, within


class Refusal(Exception):
    """The query is refused: an HTTP status and a one-line message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def picked(of: object, names: str) -> dict[str, Any]:
    """These attributes as JSON values by their names."""
    return {name: getattr(of, name) for name in _words(names)}


_words = cache(str.split)
"""Split once: a view of a large cluster has tens of thousands of rows."""


def names(a: Arbiter) -> dict[str, str]:
    """{app id: name} of every app that the journal or YARN knows, the journal's first."""
    known = {app_id: record.name for app_id, record in a.durable.apps.items()}
    return known | {app_id: app.name for app_id, app in a.cluster.apps.items()}


def record_of(a: Arbiter, app_id: str) -> AppRecord:
    """What the journal knows of an app; of one that only YARN knows, its names and when it was submitted."""
    record = a.durable.apps.get(app_id)
    if record is None:
        x = a.cluster.apps[app_id]
        record = AppRecord(app_id, x.name, x.queue, x.user, "", x.submitted_s, x.submitted_s, 0.0)
    return record


def is_known(a: Arbiter, app_id: str) -> bool:
    """Whether YARN or the journal knows an app of this id."""
    return app_id in a.cluster.apps or app_id in a.durable.apps


def user_of(a: Arbiter, app_id: str) -> str:
    """The user who owns the app."""
    app = a.cluster.apps.get(app_id)
    return app.user if app is not None else a.durable.apps[app_id].user


def find_app(a: Arbiter, params: Mapping[str, str]) -> str:
    """The id of the app that the parameter `app` names by id, name or number.

    If several match, the only one that has not ended. Raises Refusal.
    """
    text = params.get("app", "")
    if not text:
        raise Refusal(400, "app: is missing; give an application id, a name, or the number that ends an id")
    known = names(a)
    if text in known:
        return text
    found = [i for i, name in known.items() if name == text or _numbered(i, text)]
    alive = [i for i in found if i not in a.durable.apps or a.durable.apps[i].finished_s is None]
    if len(found) == 1 or len(alive) == 1:
        return (alive or found)[0]
    if found:
        raise Refusal(400, f"app: {text} names {len(found)} applications; use an id: {', '.join(found[-10:])}")
    raise Refusal(404, f"app {text}: no application of this id or name asks for GPUs; `isonomy queue` lists who does")


def find_target(a: Arbiter, params: Mapping[str, str]) -> str:
    """What a boost is for, `app ID` or `user NAME`: the parameter `target` is a user, also as the latter, or names an
    app as in `find_app`; raises Refusal."""
    text = params.get("target", "")
    seen = {x.user for x in a.durable.apps.values()} | {x.user for x in a.cluster.apps.values()}
    user = text.removeprefix(USER) in seen | a.settings.accounts.users.keys()
    if user and text.startswith(USER):
        return text
    try:
        app_id = find_app(a, {"app": text})
    except Refusal as e:
        if user and e.status == 404:
            return USER + text
        raise Refusal(e.status, str(e).replace("app", "target", 1) + f", or: {USER}{text}" * user) from e
    if user:
        raise Refusal(400, f"target: {text} names an app and a user; give the app's id, {app_id}, or: {USER}{text}")
    if app_id in a.durable.ended:
        raise Refusal(409, f"target: {app_id} has ended")
    return APP + app_id


def _numbered(app_id: str, text: str) -> bool:
    """Whether the text is the id's number, with or without leading zeros, or a longer suffix that follows a `_`."""
    number = app_id.rpartition("_")[2]
    if text.isdecimal() and text.isascii():
        return number.lstrip("0") == text.lstrip("0")
    return app_id.endswith(f"_{text}")


def find_host(a: Arbiter, params: Mapping[str, str]) -> str:
    """The host of the node that the parameter `node` names; raises Refusal."""
    text = params.get("node", "")
    if not text:
        raise Refusal(400, "node: is missing; give a host name")
    hosts = {*a.cluster.node_at, *a.cluster.down, *a.cluster.machines.configured}
    host = node.host if (node := a.cluster.nodes.get(text)) is not None else text
    if host in hosts or a.holdings.drained(host):
        return host
    raise Refusal(404, f"node {text}: is not registered; known are {', '.join(sorted(hosts)) or 'none'}")


def whole_number(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """The whole-number parameter `name`, or `default`; raises Refusal unless it is from `low` to `high`."""
    text = params.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise Refusal(400, f"{name}: must be a whole number (got {text})") from None
    if not low <= value <= high:
        raise Refusal(400, f"{name}: must be from {low} to {high} (got {value})")
    return value


def number(params: Mapping[str, str], name: str, kind: str = "a number") -> float | None:
    """The parameter `name`, None if it is absent; raises Refusal unless it is a number within the table's bounds."""
    text = params.get(name)
    try:
        return None if text is None else within(float(text), name)
    except OutOfBounds as error:
        raise Refusal(400, str(error)) from None
    except ValueError:
        raise Refusal(400, f"{name}: must be {kind} (got {text})") from None
