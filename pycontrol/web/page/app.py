"""The model of an app's page, from the views' JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pycontrol.model.cluster import STANDIN
from pycontrol.web.page import Read, Row, drawing, text
from pycontrol.web.page.cluster_page import charts
from pycontrol.words import clock

ROUNDS_SHOWN = 12
JOBS_SHOWN = 200
HOSTS_DRAWN = 40
CHART_WIDE = 1000.0
HOURS_MAX = 24 * 3600.0
LINKED = ("http://", "https://", "/proxy/")
"""How links begin; others, such as javascript:, are not shown."""


def model(read: Read, app: str) -> dict[str, Any]:
    """What `app.html` needs."""
    d = read("explain", {"app": app, "n": str(ROUNDS_SHOWN)})
    app_id = d["app"]["app_id"]
    queue = read("queue", {})
    row = next((r for r in queue["apps"] if r["app_id"] == app_id), None)
    trends = read("trends", {"app": app_id})
    held = read("spans", {"app": app_id})
    curves = {j["job_id"]: trends["losses"].get(j["job_id"], ()) for j in d["jobs"][:JOBS_SHOWN]}
    jobs = [
        {**j, "spark": drawing.spark(curves[j["job_id"]]), "points": len(curves[j["job_id"]])}
        for j in d["jobs"][:JOBS_SHOWN]
    ]
    job_names = sorted({x["job_id"] for x in held["leases"]} | {j["job_id"] for j in d["jobs"]})
    return {
        **d,
        "title": d["app"]["name"],
        "names": {r["app_id"]: r["name"] for r in queue["apps"]} | d["names"],
        "hidden": d.get("hidden", False),
        "row": row,
        "measure": queue["measure"],
        "waiting": sum(r["rank"] is not None for r in queue["apps"]),
        "progress": _progress(d["rho"]),
        "gantt": _gantt(held["leases"], text.colours(job_names), d["app"]["finished_s"] or d["now_s"]),
        "jobs": jobs,
        "more_jobs": len(d["jobs"]) - len(jobs),
        "job_colour": text.colours(job_names),
        "leases": _leases(d["leases"], d["now_s"]),
        "revocations": [_revocation(r) for r in reversed(held["revocations"])],
        "links": [x for x in d["links"] if x["url"].startswith(LINKED)],
        "charts": charts(trends, d["names"]),
    }


def _progress(terms: Row | None) -> float | None:
    """Part of its work that is done, in percent; None where it is not known."""
    if terms is None or terms["work_total_gpu_s"] <= 0:
        return None
    left: float = terms["work_left_gpu_s"] / terms["work_total_gpu_s"]
    return round(100.0 * min(1.0, max(0.0, 1.0 - left)), 1)


def _gantt(leases: list[Row], colour: Mapping[str, int], end: float) -> dict[str, Any] | None:
    """Rows of hosts, bars of leases on each GPU by job until `end`, marks where one was revoked."""
    if not leases:
        return None
    begin = max(min(x["granted_s"] for x in leases), end - HOURS_MAX)
    wide = max(60.0, end - begin)
    shown = [x for x in leases if (x["ended_s"] or end) >= begin]
    hosts: dict[str, list[Row]] = {}
    for x in shown:
        hosts.setdefault(x["host"], []).append(x)

    def at(moment_s: float) -> float:
        part: float = (moment_s - begin) / wide
        return round(CHART_WIDE * min(1.0, max(0.0, part)), 1)

    rows = []
    for host, mine in sorted(hosts.items())[:HOSTS_DRAWN]:
        gpus = sorted({x["gpu"] for x in mine}, key=lambda g: int(g.rpartition(":")[2]))
        thick = max(3.0, min(8.0, 32.0 / len(gpus)))
        bars = [_bar(x, at, gpus.index(x["gpu"]) * thick, thick, colour, end) for x in mine]
        rows.append({"host": host, "bars": bars, "high": round(thick * len(gpus) + 2, 1)})
    return {
        "rows": rows,
        "wide": CHART_WIDE,
        "more": max(0, len(hosts) - HOSTS_DRAWN),
        "begin_s": begin,
        "end_s": end,
        "ticks": [{"x": at(t), "label": time.strftime("%H:%M", time.localtime(t))} for t in drawing.ticks(begin, end)],
    }


def _bar(
    x: Row, at: Callable[[float], float], y: float, thick: float, colour: Mapping[str, int], end: float
) -> dict[str, Any]:
    left, right = at(x["granted_s"]), at(x["ended_s"] or end)
    job = "stand-in" if x["job_id"].startswith(STANDIN) else x["job_id"]
    what = f"{x['gpu']}, {f'job {job}' if job else 'not used'}, {clock(x['granted_s'], end)} to "
    what += clock(x["ended_s"], end) if x["ended_s"] else "now"
    if x["reason"]:
        what += f"; revoked: {x['reason']}"
    box = {"x": left, "width": round(max(1.5, right - left), 1), "y": round(y + 1, 1), "high": round(thick - 1, 1)}
    shade = f"c{colour[x['job_id']]}" if x["started_s"] else "unused"
    revoked = at(x["revoking_s"]) if x["revoking_s"] else None
    return {**box, "colour": shade, "what": what, "revoked": revoked}


def _leases(leases: list[Row], now_s: float) -> list[dict[str, Any]]:
    """Gang by gang."""
    gangs: dict[tuple[Any, ...], list[str]] = {}
    for x in leases:
        job = "stand-in" if x["job_id"].startswith(STANDIN) else x["job_id"]
        key = (job, x["state"], x["reason"], text.until(x["end_s"], now_s), x["guaranteed"])
        gangs.setdefault(key, []).append(x["gpu"])
    names = ("job", "state", "reason", "ends", "guaranteed")
    return [
        {**dict(zip(names, key, strict=True)), "gpus": ", ".join(gpus), "count": len(gpus)}
        for key, gpus in gangs.items()
    ]


def _revocation(r: Row) -> dict[str, Any]:
    parts = [x for x in (r["stop_gpu_s"], r["start_gpu_s"]) if x is not None]
    return {**r, "cost_gpu_s": sum(parts) if parts else None, "complete": len(parts) == 2}
