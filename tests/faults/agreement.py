"""Agreement of the parts: the Arbiter's view of YARN, what Agents began, queues' limits, refusals, remains of apps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from pycontrol.arbiter.ledger.lease import is_revoking
from pycontrol.arbiter.views.workers import REFUSED_S
from submarine_patch.agent import jobs

FORGET_S = 60.0
"""After this time without a refusal the count starts from zero; apps avoid a machine for longer than that."""
INSISTS_S = REFUSED_S + 75.0
"""The longest time for which an app may be placed on a machine that refuses every placement."""
APP_PREFIXES = ("application_", "container_", "appattempt_")
BOUNDED = {
    "apps",
    "ended",
    "memory",
    "receipts",
    "story",
    "_events",
    "_granted",
    "_names",
    "mail",
    "spans",
    "trends",
    "_answers",
    "ledger",
    "stale",
}
"""Fields with separate rules for what they keep of ended apps: the last round, what the next one looks at, a policy's
memory..."""


def view_differs(plane: Any, rm: Any) -> str:
    """The Arbiter's wrong or missing beliefs about nodes, containers, apps and asks; empty if there are none.

    A snapshot and the events that it replaces must lead to the same view.
    """
    cluster, live = plane.arbiter.cluster, {a.app_id: a for a in rm.apps.values() if not a.final}
    containers = {c.container_id for c in rm.containers.values() if c.node_id in rm.nodes}
    containers |= {c.container_id for c in rm.plugin.ending.all()}
    asks = {(k.attempt_id, k.priority, k.allocation_request_id): k.count for k in rm.plugin.asks.all() if k.gpus > 0}
    believed = {
        (a.attempt_id, a.priority, a.allocation_request_id): a.count
        for app_id in cluster.asks.apps()
        for a in cluster.asks.of(app_id).values()
    }
    pairs: dict[str, tuple[Any, Any]] = {
        "nodes": ({n.node_id: n.gpus for n in cluster.nodes.values()}, {k: n.gpus for k, n in rm.nodes.items()}),
        "decommissioning": (
            {n.node_id for n in cluster.nodes.values() if n.decommissioning},
            {k for k, n in rm.nodes.items() if n.state == "DECOMMISSIONING"},
        ),
        "apps": ({k: a.queue for k, a in cluster.apps.items()}, {k: a.queue for k, a in live.items()}),
        "containers": (set(cluster.containers), {c for c in containers if _has_gpus(rm, c)}),
        "asks": (believed, asks),
    }
    wrong = [f"{what}: {said} in place of {true}" for what, (said, true) in pairs.items() if said != true]
    return "; ".join(wrong)[:400]


def _has_gpus(rm: Any, container_id: str) -> bool:
    found = rm.containers.get(container_id)
    return found is None or bool(found.gpus)


def undone(world: Any) -> Iterator[tuple[tuple[str, str], str, str]]:
    """(key, problem, app) of what an Agent that hears and is heard has begun and does not go on with.

    Each of them is nothing for long: a plan is answered, an accepted worker is asked for, a container is launched.
    """
    for app_id, master in world.masters.items():
        if not hasattr(master, "brain") or master.life.dead or world.sim.now < master.mute_until_s:
            continue
        if master.is_heard and world.net.quick(master.name, master.peer):
            for worker_id, problem in _unplanned(master):
                yield (master.attempt_id, worker_id), f"{worker_id} of {app_id} {problem}", app_id
        if world.net.quick(master.name, "rm"):
            for container_id in _unlaunched(world, master):
                problem = f"{container_id} of {app_id} is neither launched nor given back"
                yield (master.attempt_id, container_id), problem, app_id


def _unplanned(master: Any) -> Iterator[tuple[str, str]]:
    """(worker, problem) of launches whose plan the Agent does not repeat, or whose containers it does not ask for."""
    for job in master.brain.jobs.values():
        waiting = [w for w in job.workers if job.state == jobs.STARTING and not w.container_id and w.exit_code is None]
        for worker in waiting:
            if not job.use_accepted and not job.use_again_s:
                yield worker.worker_id, "has no answer to its plan"
            elif job.use_accepted and worker.request_id not in master.open_requests:
                yield worker.worker_id, "is not asked for"


def _unlaunched(world: Any, master: Any) -> Iterator[str]:
    """Containers on running machines that the AM has, and neither starts nor releases."""
    for container_id, c in master.held.items():
        nm, known = world.nms[c.node_id.split(":")[0]], container_id in world.rm.containers
        if (
            nm.up
            and known
            and c.state == "ACQUIRED"
            and container_id not in nm.runs
            and container_id not in master.releases
        ):
            yield container_id


def queues_over(arbiter: Any, granted: Iterable[str]) -> str:
    """The queue that exceeds its limit although one of its apps was just granted GPUs; empty if there is none."""
    d, machines = arbiter.durable, arbiter.cluster.machines
    part_of = {app_id: (app.queue, arbiter.holdings.partition_of(app_id)) for app_id, app in d.apps.items()}
    held = Counter(part_of[x.app_id] for x in d.claims() if not is_revoking(x) for _ in x.gpus)
    for path, partition in sorted(part_of[app_id] for app_id in granted if app_id in d.apps):
        queue = arbiter.cluster.queues.get(path)
        if queue is None or (limit := queue.share(partition).max_capacity) >= 1.0:
            continue
        most = int(limit * machines.topology.gpus_in.get(partition, 0) + 1e-9)
        if held[path, partition] > most:
            return f"{path} has {held[path, partition]} GPUs in partition {partition!r}, its limit is {most}"
    return ""


def limits_over(a: Any, granted: Iterable[str], renewed: Iterable[str]) -> str:
    """The limit of an account that does not allow what a round just did; empty if there is none."""
    for app_id in {*granted, *renewed}.intersection(a.durable.apps):
        app = a.durable.apps[app_id]
        for level in (
            x
            for name in a.holdings.limits.of(app.queue, app.user)
            for x in a.holdings.limits.levels(name, a.holdings.event_s)
        ):
            if level.share >= 1 if level.ends_s is not None else level.used > level.limit and app_id in granted:
                return f"{level}, and {app_id} got more"
    return ""


class Refused:
    """Consecutive refusals of an app's placements by a machine."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], tuple[float, float]] = {}
        """(app, host) -> when the run began, and its newest."""

    def refused(self, app_id: str, host: str, now_s: float, calm_s: float) -> bool:
        """Notes a refusal; returns whether they have continued for too long since the last disturbance."""
        first_s, last_s = self._runs.get((app_id, host), (now_s, now_s))
        if now_s - last_s > FORGET_S:
            first_s = now_s
        self._runs[app_id, host] = first_s, now_s
        return min(now_s - first_s, calm_s) > INSISTS_S

    def placed(self, app_id: str, host: str) -> None:
        """Notes a successful placement."""
        self._runs.pop((app_id, host), None)


def left_of_apps(part: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, str]]:
    """(field, entry) of whatever names an app, a container or an attempt, in a part and in all parts of it."""
    seen = seen if seen is not None else set()
    if id(part) in seen or isinstance(part, str | bytes | int | float | type(None)):
        return
    seen.add(id(part))
    if isinstance(part, Mapping | Set | list | tuple) or hasattr(part, "popleft"):
        for entry in list(part):
            for text in entry if isinstance(entry, tuple) else (entry,):
                if isinstance(text, str) and text.startswith(APP_PREFIXES):
                    yield name, text
        values = part.values() if isinstance(part, Mapping) else part
        for value in list(values):
            yield from left_of_apps(value, name, seen)
    elif type(part).__module__.startswith("pycontrol."):
        slots = [s for c in type(part).__mro__ for s in getattr(c, "__slots__", ())]
        for key in vars(part) if hasattr(part, "__dict__") else slots:
            if key not in BOUNDED:
                yield from left_of_apps(getattr(part, key, None), f"{name}.{key}".lstrip("."), seen)
