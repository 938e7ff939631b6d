"""Removes from an answer what YARN's ACLs (VIEW_APP) do not let the caller see.

All users of the cluster see that an app exists, its user, its GPUs and why it waits. Configurations, messages, losses
and the model's path are only for its viewers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pycontrol.arbiter.ledger.facts import AppChanged
from pycontrol.queries.lookup import Refusal

Answer = dict[str, Any]
Sees = Callable[[str, str], bool]
"""(app id, user) -> whether the caller may view the app."""
OF_APP = {"best": None, "model_path": "", "message": ""}
OF_EVENTS = frozenset({AppChanged.__name__})
"""Events with messages and metrics; that an app ended is said by another."""
OF_JOB = {"configuration": {}, "note": "", "loss": 0.0, "accuracy": 0.0, "metric": None}


def _app(row: Mapping[str, Any], sees: Sees) -> Answer:
    return dict(row) if sees(row["app_id"], row["user"]) else {**row, **OF_APP}


def _explain(found: Answer, sees: Sees) -> Answer:
    app = found["app"]
    if sees(app["app_id"], app["user"]):
        return found
    return {
        **found,
        "app": {**app, **OF_APP},
        "jobs": [{**j, **{k: v for k, v in OF_JOB.items() if k in j}} for j in found["jobs"]],
        "links": [],
        "line": "",
        "hidden": True,
    }


def _picture(found: Answer, sees: Sees) -> Answer:
    durable = found["durable"]
    return {**found, "durable": {**durable, "apps": [_app(row, sees) for row in durable["apps"]]}}


def _logs(found: Answer, sees: Sees) -> Answer:
    if not sees(found["app_id"], found["user"]):
        raise Refusal(403, f"logs: YARN's VIEW_APP does not let you look into {found['app_id']}")
    return found


def _events(found: Answer, sees: Sees) -> Answer:
    said = [e for e in found["events"] if e["kind"] not in OF_EVENTS or sees(e["app_id"], e["user"])]
    return {**found, "events": said}


LEFT_OUT: Mapping[str, Callable[[Answer, Sees], Answer]] = {
    "apps": lambda found, sees: {**found, "apps": [_app(row, sees) for row in found["apps"]]},
    "explain": _explain,
    "picture": _picture,
    "logs": _logs,
    "trends": lambda found, sees: found if sees(found["app_id"], found["user"]) else {**found, "losses": {}},
    "events": _events,
}
"""By path."""
