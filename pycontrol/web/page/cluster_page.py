"""The model of the cluster's page, from the views' JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pycontrol.queries.lookup import Refusal
from pycontrol.web.page import Read, Row, drawing, text
from pycontrol.web.page.machine_map import Drawer

ROWS_SHOWN = 100
ROUNDS_SHOWN = 12
ENDED_SHOWN = 20
POINTS_DRAWN = 288
FAIR = {"rho": 1.0, "virtual finish time": 0.0}
"""Where fairness lies by the measure."""
SHOWN = ("all", "waiting", "running")
SOUGHT = ("app_id", "name", "queue", "user", "reason")
PARAMS = frozenset({"show", "q", "rows", "rack"})


def model(read: Read, params: Mapping[str, str]) -> dict[str, Any]:
    """What `cluster.html` needs."""
    unknown = sorted(set(params) - PARAMS)
    if unknown:
        raise Refusal(400, f"unknown parameter {unknown[0]}; known: {', '.join(sorted(PARAMS))}")
    status, queue = read("status", {}), read("queue", {})
    colour = text.colours(app["app_id"] for app in sorted(queue["apps"], key=lambda r: (r["submitted_s"], r["app_id"])))
    names = {app["app_id"]: app["name"] for app in queue["apps"]}
    trends, rounds = read("trends", {}), read("rounds", {"n": str(ROUNDS_SHOWN)})
    names = {**rounds["names"], **names}
    return {
        "title": "Cluster",
        "now_s": status["now_s"],
        "status": status,
        "whole": _bar(status["gpus"]),
        "map": Drawer(colour, names, status["now_s"]).map(read, status, params.get("rack", "")),
        "queue": _queue(queue, params),
        "ended": _ended(read),
        "measure": queue["measure"],
        "colour": colour,
        "charts": charts(trends, names),
        "rounds": [lived(receipt) for receipt in rounds["rounds"]],
        "names": names,
        "cells": read("cells", {}),
    }


def _ended(read: Read) -> list[Row]:
    """The apps that ended last, newest first; `isonomy jobs` has all."""
    ended = [app for app in read("apps", {})["apps"] if app["finished_s"] is not None]
    return sorted(ended, key=lambda app: -app["finished_s"])[:ENDED_SHOWN]


def _bar(gpus: Mapping[str, int]) -> list[dict[str, Any]]:
    """The states of all GPUs as parts of a bar, in percent."""
    states = ("leased", "free", "unleased_in_use", "drained", "bad", "down")
    whole = max(1, sum(gpus[s] for s in states))
    return drawing.stacked([(s, gpus[s]) for s in states], whole)


# ---- the queue


def _queue(queue: Row, params: Mapping[str, str]) -> dict[str, Any]:
    """The rows that are shown, and how many there are."""
    show, sought = params.get("show", "all"), params.get("q", "").strip().lower()
    if show not in SHOWN:
        raise Refusal(400, f"show: must be one of {', '.join(SHOWN)} (got {show})")
    shown = {"running": lambda row: row["gpus_held"] > 0, "waiting": lambda row: row["rank"] is not None}
    rows = [row for row in filter(shown.get(show), queue["apps"]) if any(sought in str(row[f]).lower() for f in SOUGHT)]
    most = len(rows) if params.get("rows") == "all" else ROWS_SHOWN
    counts = {"found": len(rows), "all": len(queue["apps"]), "waiting": sum(map(shown["waiting"], queue["apps"]))}
    asked = {"show": show, "q": params.get("q", ""), "shown": SHOWN}
    known = any(r.get("start_s") or r.get("end_s") for r in queue["apps"])
    return {"rows": rows[:most], **counts, **asked, "estimates": known}


# ---- the charts


def charts(trends: Row, names: Mapping[str, str]) -> dict[str, Any]:
    """The GPUs' and the apps' chart: a drawing for all, and the numbers for the script."""
    at_s = drawing.thinned(trends["at_s"], POINTS_DRAWN)
    gpus = {state: drawing.thinned(series, POINTS_DRAWN) for state, series in trends["gpus"].items()}
    measure = trends["measure"]
    unit = 3600.0 if measure == "virtual finish time" else 1.0
    apps = {
        app_id: [None if x is None else round(x / unit, 3) for x in drawing.thinned(series, POINTS_DRAWN)]
        for app_id, series in trends["apps"].items()
    }
    label = {"virtual finish time": "hours until the virtual finish time", "": "rho"}.get(measure, measure)
    shades = text.colours(apps)
    series = [{"name": names.get(a, a), "colour": shades[a], "values": values} for a, values in apps.items()]
    kinds = ("leased", "free", "out", "waiting")
    states = [{"name": f"{state} GPUs", "colour": state, "values": gpus[state]} for state in kinds]
    there = max(map(sum, zip(gpus["leased"], gpus["free"], gpus["out"], strict=True)), default=0)
    most = max(1, 2 * there)  # one app may wait for a hundred times the cluster
    of_gpus = {"at_s": at_s, "series": states, "line": None, "most": most}
    of_apps = {"at_s": at_s, "series": series, "line": FAIR.get(measure)}
    return {
        "points": len(at_s),
        "from_s": at_s[0] if at_s else None,
        "gpus": {"label": "GPUs", "lines": drawing.lines(at_s, states, most), "data": json.dumps(of_gpus)},
        "apps": {"label": label, "lines": drawing.lines(at_s, series), "data": json.dumps(of_apps)},
        "any_app": any(x is not None for values in apps.values() for x in values),
    }


# ---- rounds


def lived(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """One receipt, with its changes by app."""
    whose = {gpu: app_id for app_id, gpus in receipt["ending"].items() for gpu in gpus}
    renewed = [{"app_id": whose.get(gpu, ""), "gpu": gpu} for gpu in receipt.get("renewed", ())]
    changes = {kind: _by_app(receipt.get(kind, ())) for kind in ("granted", "revoked")}
    return {**receipt, "changes": {**changes, "renewed": _by_app(renewed)}}


def _by_app(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["app_id"], []).append(str(row["gpu"]))
    return found
