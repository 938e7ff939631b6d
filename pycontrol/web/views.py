"""What people see of the control plane, as JSON-able dictionaries. Pure functions of the Arbiter's state."""

from __future__ import annotations

import dataclasses
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.facts import REVOKING, AppRecord
from pycontrol.arbiter.reasons import reason
from pycontrol.arbiter.state import DRAINED, by_host

ROUNDS_EXPLAINED = 5


def status(a: Arbiter, now_s: float) -> dict[str, Any]:
    """The cluster at a glance."""
    leased = set(a.durable.leases)
    return {
        "ready": a.ready,
        "recovering": now_s < a.recovering_until_s,
        "paused": a.paused,
        "policy": a.policy_name,
        "f": a.settings.f,
        "lease_s": a.settings.lease_s,
        "gpus": {
            "total": a.topology.gpus,
            "free": len(a.free_gpus()),
            "leased": len(leased),
            "revoking": sum(x.state == REVOKING for x in a.durable.leases.values()),
        },
        "apps": sum(1 for _ in a.in_system()),
        "rounds": a.durable.rounds,
        "last_round": a.receipts[-1]["round_id"] if a.receipts else None,
        "next_round_s": _in(a.rounds.due_s(), now_s),
        "nodes": [_node(a, n.host) for n in sorted(a.nodes.values(), key=lambda n: n.host)]
        + [{"host": k.rpartition(":")[0], "state": f"down: {v}", "gpus": 0} for k, v in sorted(a.down.items())],
        "time_s": now_s,
    }


def _in(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(max(0.0, at_s - now_s), 1)


def _node(a: Arbiter, host: str) -> dict[str, Any]:
    machine = a.topology.machines.get(host)
    users: dict[str, int] = {}
    for gpu, lease in a.durable.leases.items():
        if gpu.host == host:
            users[lease.app_id] = users.get(lease.app_id, 0) + 1
    return {
        "host": host,
        "rack": a.topology.rack_of(host),
        "gpus": machine.gpus if machine else 0,
        "gpu_type": machine.gpu_type if machine else "",
        "virtual": bool(machine and machine.virtual),
        "state": "drained" if a.drained(host) else "up",
        "leased": users,
    }


def app_row(a: Arbiter, app: AppRecord, now_s: float) -> dict[str, Any]:
    """One app, shortly."""
    agent = a.agents.get(app.app_id)
    why = reason(a, app.app_id, now_s)
    ends = [x.end_s for x in a.leases_of(app.app_id)]
    return {
        "app_id": app.app_id,
        "name": app.name,
        "queue": app.queue,
        "user": app.user,
        "kind": app.kind,
        "gpus": len(ends),
        "wanted_gpus": agent.demand.gpus if agent is not None else app.demand_gpus,
        "rho": _last_rho(a, app.app_id),
        "n_avg": a.durable.n_avg(app.app_id, now_s),
        "reason": why.code,
        "why": why.sentence,
        "next_lease_end_s": _in(min(ends, default=None), now_s),
        "submitted_s": app.submitted_s,
        "finished_s": app.finished_s,
        "final_state": app.final_state,
        "renewals": app.renewals,
        "revocations": app.revocations,
        "restarts": app.restarts,
    }


def _last_rho(a: Arbiter, app_id: str) -> float | None:
    agent = a.agents.get(app_id)
    if agent is not None and agent.rho is not None:
        return agent.rho
    return next((r["rho"][app_id] for r in reversed(a.receipts) if r["rho"].get(app_id)), None)


def queue(a: Arbiter, now_s: float) -> dict[str, Any]:
    """Apps in the system, the worst rho first."""
    rows = [app_row(a, a.durable.apps[x], now_s) for x in a.in_system()]
    rows.sort(key=lambda r: (-(r["rho"] or 0.0), r["submitted_s"]))
    return {"apps": rows}


def apps(a: Arbiter, now_s: float) -> dict[str, Any]:
    """All apps that the journal knows, in order of arrival."""
    return {"apps": [app_row(a, x, now_s) for x in a.durable.apps.values()]}


def leases(a: Arbiter, now_s: float) -> dict[str, Any]:
    """Every lease, present and next."""
    rows = []
    for when, table in (("now", a.durable.leases), ("next", a.durable.next)):
        for gpu, x in sorted(table.items()):
            rows.append(
                {
                    "gpu": str(gpu),
                    "when": when,
                    "app_id": x.app_id,
                    "state": x.state,
                    "grant_id": x.grant_id,
                    "job_id": x.job_id,
                    "container_id": x.container_id,
                    "ends_in_s": round(x.end_s - now_s, 1),
                }
            )
    return {"leases": rows}


def find_app(a: Arbiter, name: str) -> AppRecord | None:
    """By id, by name (the newest of several) or by the end of the id."""
    known = a.durable.apps
    if name in known:
        return known[name]
    for match in (lambda x: x.name == name, lambda x: len(name) > 3 and x.app_id.endswith(name)):
        found = [x for x in known.values() if match(x)]
        if found:
            return found[-1]
    return None


def explain(a: Arbiter, app: AppRecord, now_s: float) -> dict[str, Any]:
    """Why an app got what it got: rho and its terms, its leases, and the last rounds it lived through."""
    row = app_row(a, app, now_s)
    agent = a.agents.get(app.app_id)
    end_s = app.finished_s or now_s
    demand = agent.demand if agent is not None else None
    t_id = None
    work = app.work_done_gpu_s if app.finished_s else (demand.work_total_gpu_s if demand else 0.0)
    if work > 0:
        parallel = max(1, min(a.topology.gpus, app.demand_gpus))
        t_id = work / parallel * a.durable.n_avg(app.app_id, now_s)
    return {
        **row,
        "fairness": {
            "elapsed_s": round(end_s - app.submitted_s, 3),
            "n_avg": row["n_avg"],
            "cluster_gpus": a.topology.gpus,
            "demand_gpus": app.demand_gpus,
            "work_gpu_s": work or None,
            "t_id_s": t_id,
            "paced": bool(demand and demand.paced),
        },
        "held": by_host(x.gpu for x in a.leases_of(app.app_id)),
        "leases": [x for x in leases(a, now_s)["leases"] if x["app_id"] == app.app_id],
        "jobs": [dataclasses.asdict(j) for j in agent.jobs] if agent is not None else [],
        "rounds": [_seen(r, app.app_id) for r in list(a.receipts)[-ROUNDS_EXPLAINED:] if app.app_id in _all(r)],
        "best": app.best,
        "model_path": app.model_path,
        "message": app.message,
        "waiting_workers": {
            w.plan.worker_id: w.problem for w in a.workers.values() if w.app_id == app.app_id and w.problem
        },
    }


def _all(r: dict[str, Any]) -> set[str]:
    return set(r["rho"]) | set(r["out"])


def _seen(r: dict[str, Any], app_id: str) -> dict[str, Any]:
    """One receipt as one app lived it."""
    mine = next((b for b in r.get("bids", ()) if b["app_id"] == app_id), None)
    rhos = sorted((v for v in r["rho"].values() if v is not None), reverse=True)
    own = r["rho"].get(app_id)
    return {
        "round_id": r["round_id"],
        "at_s": r["at_s"],
        "offered_gpus": sum(r["offered"].values()),
        "rho": own,
        "rho_rank": rhos.index(own) + 1 if own in rhos else None,
        "of": len(rhos),
        "offered": app_id in r["participants"],
        "out": r["out"].get(app_id),
        "bid": mine,
        "awards": [x for x in r.get("awards", ()) if x["app_id"] == app_id],
        "renewed_gpus": None,
        "others_won": {b["app_id"]: b["won"] for b in r.get("bids", ()) if b["app_id"] != app_id and b["won"]},
        "revoked": [x["gpu"] for x in r.get("revoked", ()) if x["app_id"] == app_id],
        "note": r.get("note", ""),
    }


def rounds(a: Arbiter, n: int) -> dict[str, Any]:
    """The newest n receipts, newest first."""
    return {"rounds": list(a.receipts)[-n:][::-1] if n > 0 else []}


def logs(a: Arbiter, app: AppRecord) -> dict[str, Any]:
    """Where its containers run now."""
    return {
        "app_id": app.app_id,
        "user": app.user,
        "containers": [
            {"container_id": c.container_id, "node_id": c.node_id, "gpus": [str(g) for g in c.gpus]}
            for c in a.containers.values()
            if c.app_id == app.app_id
        ],
    }


def drained(a: Arbiter) -> list[str]:
    """Hosts that an operator took out of use."""
    return sorted(s.removeprefix(DRAINED) for s in a.durable.switches if s.startswith(DRAINED))
