"""The views of the REST resource: pure functions (arbiter, now, parameters) -> JSON values.

Times are in Unix seconds (`_s`); GPUs are counted (`gpus`) or named host:index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import Boosted, Switched
from pycontrol.arbiter.ledger.lease import REVOKING, Lease, Reservation
from pycontrol.arbiter.state import CELLS, DRAINED, KILLED, RECEIPTS_KEPT
from pycontrol.model import tags
from pycontrol.model.cluster import Mode
from pycontrol.model.grouping import grouped
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu, Machine, count_by_host
from pycontrol.queries.demands import Demands
from pycontrol.queries.lookup import find_app, names, picked, record_of, user_of, whole_number
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.queries.standing import Standing, measure_of, policy_of
from pycontrol.words import count

View = Callable[[Arbiter, float, Mapping[str, str]], dict[str, Any]]
Remembered = Callable[[str], Mapping[str, tuple[str, str]]]
"""App id -> container id -> (host, job id) of its newest containers."""
ROUNDS_SHOWN, ROUNDS_MAX = 10, RECEIPTS_KEPT


def status(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """The cluster at a glance: settings, GPUs by state, nodes, apps and the last round."""
    nodes = _nodes(a)
    running = sum(a.holdings.holding(app_id) > 0 for app_id in a.durable.live)
    switch = a.cluster.switch
    return {
        "now_s": now_s,
        "ready": a.cluster.ready,
        "shadow": switch.mode is Mode.SHADOW,
        "mode": {"name": switch.mode, "queues": list(switch.queues), **picked(switch, "by at_s problem")},
        "state": state(a, now_s),
        "held": a.holdings.held,
        "recovering": _recovering(a, now_s),
        "paused": a.holdings.paused,
        "drained": sorted(s.removeprefix(DRAINED) for s in a.durable.switches if s.startswith(DRAINED)),
        "acts": [{"at_s": x.at_s, "user": x.user, "text": act(x)} for x in reversed(a.durable.acts)],
        "boosts": [boost_row(b) for b in sorted(a.durable.boosts.values(), key=lambda b: b.until_s)],
        "policy": a.policy_name,
        **picked(a.settings, "f lease_s"),
        "lead_s": a.settings.lead,
        "launch_s": a.durable.launch_s,
        "epoch": a.clerk.epoch,
        "gpus": gpu_counts(a),
        "nodes": nodes,
        "apps": {
            "running": running,
            "waiting": len(a.durable.live) - running,
            "ended": sum(x.finished_s is not None for x in a.durable.apps.values()),
        },
        "rounds": a.durable.rounds,
        "next_round_s": a.rounds.due_s(),
        "last_round": _short(a.receipts[-1]) if a.receipts else None,
    }


def act(fact: Switched) -> str:
    """Who did what."""
    kind, _, of = fact.switch.partition(":")
    done = {
        DRAINED: f"{'drains' if fact.on else 'undrains'} {of}",
        KILLED: f"ended {of}",
        CELLS: "applied the cells file",
    }.get(f"{kind}:" if of else kind, f"{'paused' if fact.on else 'resumed'} the rounds")
    return f"{fact.user or 'an operator'} {done}"


def _recovering(a: Arbiter, now_s: float) -> bool:
    return bool(a.holdings.held) or not a.cluster.settled(now_s)


def state(a: Arbiter, now_s: float) -> str:
    """What it does now, in a word or two."""
    mode = a.cluster.switch.mode
    if mode is not Mode.ON:
        return "mode unreadable" if mode is Mode.UNREADABLE else str(mode)
    if a.holdings.held:
        return "held"
    return "paused" if a.holdings.paused else "recovering" if _recovering(a, now_s) else "ready"


def gpu_counts(a: Arbiter) -> dict[str, int]:
    """GPU counts by state; one GPU can count in several. `down`: GPUs of topology machines without a NodeManager."""
    return {
        "total": sum(n.gpus for n in a.cluster.nodes.values()),
        "free": a.gpus.free.count,
        "leased": len(a.durable.leases),
        "drained": sum(n.gpus for n in a.cluster.nodes.values() if a.holdings.drained(n.host)),
        "bad": len(a.cluster.machines.bad_gpus),
        "down": sum(m.gpus for host, m in a.cluster.machines.configured.items() if host not in a.cluster.node_at),
        "unleased_in_use": len(_unleased(a)),
    }


def _unleased(a: Arbiter) -> list[Gpu]:
    """The GPUs that would be free if no container without a lease used them."""
    s, closed, leases = a.holdings, a.cluster.closed, a.durable.leases
    return [x for x in a.cluster.container_at if x not in leases and s.usable(x) and x.host not in closed]


def node_counts(a: Arbiter) -> dict[str, int]:
    """NodeManagers by state; `down`: those that may come back."""
    states = Counter(_node_state(a, n.host) for n in a.cluster.nodes.values())
    return {"up": 0, "drained": 0, "closed": 0, **states, "down": len(a.cluster.down)}


def _node_state(a: Arbiter, host: str) -> str:
    return "drained" if a.holdings.drained(host) else "closed" if host in a.cluster.closed else "up"


def _nodes(a: Arbiter) -> list[dict[str, Any]]:
    free, machines = count_by_host(a.gpus.free), a.holdings.topology.machines
    unleased = grouped((gpu.host, gpu.index) for gpu in sorted(_unleased(a)))
    held: dict[str, dict[str, int]] = {}
    for gpu, lease in a.durable.leases.items():
        mine = held.setdefault(gpu.host, {})
        mine[lease.app_id] = mine.get(lease.app_id, 0) + 1

    def row(host: str, machine: Machine | None, **own: Any) -> dict[str, Any]:
        return {
            "host": host,
            "rack": machine.rack if machine else "",
            "gpus": machine.gpus if machine else None,
            "gpu_type": machine.gpu_type if machine else "",
            "virtual": bool(machine and machine.virtual),
            "leased": sum(held.get(host, {}).values()),
            "unleased_gpus": unleased.get(host, []),
            **own,
        }

    rows = []
    for n in sorted(a.cluster.nodes.values(), key=lambda n: n.host):
        machine = machines.get(n.host) or Machine(n.host, n.rack, n.gpus, "")
        use = {"bad_gpus": sorted(n.bad_gpus), "free": free.get(n.host, 0), "apps": held.get(n.host, {})}
        why = {"state": _node_state(a, n.host), "reason": a.cluster.closed.get(n.host, n.note)}
        rows.append(row(n.host, machine, node_id=n.node_id, gpus=n.gpus, **use, **why))
    for host, (node_id, note) in sorted(a.cluster.down.items()):
        known = a.cluster.machines.configured.get(host)
        rows.append(row(host, known, node_id=node_id, bad_gpus=[], free=0, apps={}, state="down", reason=note))
    return rows


def _short(r: Receipt) -> dict[str, Any]:
    return {
        **picked(r, "round_id at_s note"),
        "offered": dict(r.offered),
        "participants": list(r.participants),
        "solve_s": r.outcome.solve_s if r.outcome is not None else None,
        **{what: len(changed) for what, changed in picked(r.done, "renewed granted revoked").items()},
    }


# ---- apps


def queue(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """The active apps: first those that can use more GPUs, in the order of their `standings`, then the others."""
    why, nowhere = Reasons(a, now_s), Standing(None)
    coming = [x.app_id for x in a.cluster.apps.values() if x.app_id not in a.durable.apps and tags.expects_agent(x)]
    rows = [
        _queue_row(a, app_id, now_s, why) | picked(why.standings.get(app_id, nowhere), "rank measure amount")
        for app_id in [*a.durable.live, *coming]
    ]
    rows.sort(key=lambda r: (r["rank"] is None, r["rank"] or 0, r["submitted_s"], r["app_id"]))
    for position, row in enumerate(rows, 1):
        row["position"] = position
    return {"now_s": now_s, "policy": a.policy_name, "measure": measure_of(policy_of(a, "")), "apps": rows}


def _queue_row(a: Arbiter, app_id: str, now_s: float, reasons: Reasons) -> dict[str, Any]:
    demands, known = reasons.demands, record_of(a, app_id)
    demand, held = demands.of(app_id), a.holdings.holding(app_id)
    code, sentence = reasons.told(app_id)
    leased = a.durable.leases.of(app_id)
    return {
        **picked(known, "app_id name queue user kind submitted_s"),
        "gpus_held": held,
        "gpus_wanted": max(0, demand.gpus - held) if demand else 0,
        "gpus_ending": sum(len(x.gpus) for x in leased if x.state == REVOKING),
        "rho": demands.rho_of(app_id),
        "n_avg": _n_avg(a, app_id, now_s),
        "reason": code,
        "sentence": sentence,
        "next_lease_end_s": min((x.end_s for x in leased), default=None),
        "boost": boost_row(a.holdings.boost_of(app_id)),
    }


def apps(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """Every app in the journal, including ended ones."""
    demands = Demands(a, now_s)
    return {"now_s": now_s, "apps": [app_row(a, app_id, demands) for app_id in a.durable.apps]}


def app_row(a: Arbiter, app_id: str, demands: Demands) -> dict[str, Any]:
    """An app's record and counters; of one that only YARN knows its names."""
    x, now_s = record_of(a, app_id), demands.now_s
    return {
        **picked(x, "app_id name queue user kind submitted_s arrived_s finished_s final_state leases renewals"),
        **picked(x, "revocations restarts best model_path message"),
        "attained_gpu_s": a.durable.attained_gpu_s(app_id, now_s) if app_id in a.durable.apps else 0.0,
        "gpus_held": a.holdings.holding(app_id),
        "rho": demands.rho_of(app_id),
        "n_avg": _n_avg(a, app_id, now_s),
    }


def _n_avg(a: Arbiter, app_id: str, now_s: float) -> float | None:
    return a.durable.n_avg(app_id, now_s) if app_id in a.durable.apps else None


def lease_rows(a: Arbiter, claims: Iterable[Lease | Reservation]) -> list[dict[str, Any]]:
    """The leases or reservations as JSON values, one row for each GPU, sorted."""
    of_gpus = {gpu: of for x in claims for of in (_lease_row(a, x),) for gpu in x.gpus}
    return [{"gpu": str(gpu), **of_gpus[gpu]} for gpu in sorted(of_gpus)]


_NEXT = {"state": "next", "container_id": "", "job_id": "", "reason": ""}


def _lease_row(a: Arbiter, lease: Lease | Reservation) -> dict[str, Any]:
    """What is the same for all its GPUs; a reservation has the state `next`."""
    known = a.cluster.apps.get(lease.app_id) or a.durable.apps.get(lease.app_id)
    present = picked(lease, "state container_id job_id reason") if isinstance(lease, Lease) else _NEXT
    own = picked(lease, "app_id grant_id granted_s end_s guaranteed")
    return {**own, **present, "name": known.name if known is not None else ""}


def boost_row(boost: Boosted | None) -> dict[str, Any] | None:
    """A boost as JSON values; None if there is none."""
    if boost is None:
        return None
    return {"target": boost.target, "by": boost.user, "at_s": boost.at_s, "until_s": boost.until_s}


def leases(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """All leases, then all reservations, each sorted by GPU."""
    rows = lease_rows(a, a.durable.leases.each()) + lease_rows(a, a.durable.reservations.each())
    return {"now_s": now_s, "leases": rows}


def rounds(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """The newest `n` receipts, newest first, with app names."""
    n = whole_number(params, "n", ROUNDS_SHOWN, 1, ROUNDS_MAX)
    receipts = [a.receipts[-i] for i in range(1, min(n, len(a.receipts)) + 1)]
    known = names_in(a, receipts)
    return {"now_s": now_s, "rounds": [{**r.dump(), "text": round_text(r, known)} for r in receipts], "names": known}


ROUND_NAMES = 3
"""Apps of a kind that a round's line names."""


def round_text(r: Receipt, names: Mapping[str, str]) -> str:
    """A round in a line: what it had to give and to whom, who got and lost how many GPUs, and who paid."""
    named = [names.get(a, a) for a in r.participants[:ROUND_NAMES]]
    named += [count(more, "other")] if (more := len(r.participants) - ROUND_NAMES) > 0 else []
    shared = f"offered to {', '.join(named) or 'nobody'}" if r.asked else f"shared out by {r.policy}"
    parts = [f"{count(sum(r.offered.values()), 'GPU')} {shared}"]
    for changed, word in ((r.done.granted, "to"), (r.done.revoked, "back from")):
        by_app = Counter(x.app_id for x in changed).most_common()
        few = [f"{n} {word} {names.get(app_id, app_id)}" for app_id, n in by_app[:ROUND_NAMES]]
        rest = by_app[ROUND_NAMES:]
        few += [f"{sum(n for _, n in rest)} {word} {count(len(rest), 'other')}"] if rest else []
        parts += [", ".join(few)] if few else []
    parts += [f"{len(r.done.renewed)} renewed"] if r.done.renewed else []
    parts += [f"{names.get(b.app_id, b.app_id)} pays (c = {b.c:.3f})" for b in r.done.bids if b.paid_gangs]
    return "; ".join([*parts, *filter(None, [r.note])])


def names_in(a: Arbiter, receipts: Iterable[Receipt]) -> dict[str, str]:
    """{app id: name} of the apps that have not ended and of those in the receipts."""
    mentioned = {*a.durable.live, *a.cluster.apps}
    for r in receipts:
        done = r.done
        mentioned.update(r.rho, r.out, r.ending, r.participants, done.why)
        for part in (done.bids, done.awards, done.granted, done.revoked):
            mentioned.update(x.app_id for x in part)
    return {app_id: name for app_id, name in names(a).items() if app_id in mentioned}


def logs(a: Arbiter, now_s: float, params: Mapping[str, str], remembered: Remembered = lambda _: {}) -> dict[str, Any]:
    """The app's containers, with GPUs, job and worker, for finding its logs; first those that ended."""
    app_id = find_app(a, params)
    yarn, nodes = a.cluster.apps.get(app_id), {n.host: n.node_id for n in a.cluster.nodes.values()}
    alive = {c.container_id: c for c in a.cluster.containers.values() if c.app_id == app_id}
    rows = [
        {"container_id": x, "node_id": nodes.get(host, ""), "gpus": [], "job_id": job_id, "worker_id": ""}
        for x, (host, job_id) in remembered(app_id).items()
        if x not in alive
    ]
    plans = {w.container_id: w.plan for w in a.workers.of(app_id)}
    for name, container in sorted(alive.items()):
        plan, lease = plans.get(name), a.durable.leases.get(container.gpus[0]) if container.gpus else None
        rows.append(
            {
                "container_id": name,
                "node_id": container.node_id,
                "gpus": [str(g) for g in container.gpus],
                "job_id": plan.job_id if plan else lease.job_id if lease else "",
                "worker_id": plan.worker_id if plan else "",
            }
        )
    about = {"app_id": app_id, "name": names(a)[app_id], "user": user_of(a, app_id)}
    return {**about, "attempt_id": yarn.attempt_id if yarn else "", "containers": rows}


def audit(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """Compare the leases with the containers that YARN reports now; `isonomy audit` checks the whole journal."""
    checked = {"leases": len(a.durable.leases), "containers": len(a.cluster.containers), "ready": a.cluster.ready}
    found = [{"kind": kind, "what": what, "when": now_s} for kind, what in _violations(a)]
    return {"checked": checked, "violations": found}


def _violations(a: Arbiter) -> Iterator[tuple[str, str]]:
    seen: dict[Gpu, str] = {}
    for container in a.cluster.containers.values():
        for gpu in container.gpus:
            other = seen.setdefault(gpu, container.container_id)
            if other != container.container_id:
                yield "gpu_in_two_containers", f"GPU {gpu}: {other} and {container.container_id}"
            lease = a.durable.leases.get(gpu)
            if not container.plain and (lease is None or lease.app_id != container.app_id):
                holder = lease.app_id if lease else "nobody"
                yield "container_without_lease", f"{container.container_id}: GPU {gpu} is leased to {holder}"
    for gpu, lease in a.durable.leases.items():
        if lease.container_id and lease.container_id not in a.cluster.containers and a.cluster.ready:
            yield "lease_without_container", f"GPU {gpu}: {lease.container_id} does not run"
