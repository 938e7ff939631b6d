"""The stand-in: bids for unmanaged apps.

It assumes that the work left equals the attained service, but is at least one lease of the whole demand, unless the
app declares how long each of its containers runs (`isonomy.max_hours`, see `tags`). A gang is one container; in each
round it bids for containers of one size (`Openings.demand` chooses it). With the application tag `isonomy.gang`, all
containers that the app asks for are one gang, whatever their sizes; with `isonomy.gang=5`, once its attempt has asked
for five. Leases of running containers are renewed outside rounds (see `leases`), so it bids only for asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.views.workers import PlannedWorker
from pycontrol.auction.placing import pack
from pycontrol.model import tags
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang, gang_gpus
from pycontrol.model.cluster import STANDIN, Ask, Node
from pycontrol.model.events import WorkerPlan
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Gpu, Scope

MOST_CONTAINERS = 1 << 20


def open_asks(s: Holdings, app_id: str) -> list[tuple[Ask, int]]:
    """(ask, containers not yet being placed) for each open ask of the app, those with the most GPUs first.

    The number is limited to what the cluster could hold.
    """
    return [(ask, min(n, max(1, s.cluster.machines.gpus // ask.gpus))) for ask, n in _open(s, app_id)]


def _open(s: Holdings, app_id: str) -> list[tuple[Ask, int]]:
    asks = _asked(s, app_id)
    if not asks or not tags.is_interactive(s.cluster.apps.get(app_id)):
        return asks
    room, result = _interactive_room(s, app_id), []
    if start_together(s, app_id):
        return asks if sum(ask.gpus * n for ask, n in asks) <= room else []
    for ask, n in asks:
        allowed = min(n, room // ask.gpus)
        room -= allowed * ask.gpus
        result += [(ask, allowed)] if allowed > 0 else []
    return result


def _interactive_room(s: Holdings, app_id: str) -> int:
    """GPUs that an interactive app may have besides those it holds; its user's older apps come first."""
    user, older = s.cluster.apps[app_id].user, True
    room = s.settings.interactive_gpus
    for other in s.agents.interactive.get(user, ()):
        older = older and other != app_id
        held = len(gpus_in(s.durable.claims_of(other)))  # and those being revoked
        room -= held + (_may_start_gpus(s, other) if older else 0)
        if room <= 0:
            break
    return max(0, room)


def _may_start_gpus(s: Holdings, app_id: str) -> int:
    """GPUs that an interactive app asks for and that its limit allows at all."""
    most, each = s.settings.interactive_gpus, [(ask.gpus, n) for ask, n in _asked(s, app_id)]
    if start_together(s, app_id):
        together = sum(gpus * n for gpus, n in each)
        return together if together <= most and not missing(s, app_id) else 0
    return sum(gpus * n for gpus, n in each if gpus <= most)


def over_interactive_limit(s: Holdings, app_id: str) -> bool:
    """Whether the limit on its user's interactive apps keeps an app from all that it asks for."""
    return s.is_unmanaged(app_id) and bool(_asked(s, app_id)) and not _open(s, app_id)


def _asked(s: Holdings, app_id: str) -> list[tuple[Ask, int]]:
    app = s.cluster.apps.get(app_id)
    if app is None or app_id in s.agents.terminating:
        return []
    result = []
    for ask in s.cluster.asks.of(app_id).values():
        left = ask.count - s.workers.coming(app_id, ask.key)
        if ask.attempt_id == app.attempt_id and left > 0:
            result.append((ask, left))
    if len(result) > 1:  # most have one
        result.sort(key=lambda entry: (-entry[0].gpus, entry[0].allocation_request_id, entry[0].priority))
    return result


def waits(s: Holdings, app_id: str) -> bool:
    """Whether the app has open asks that may be served now."""
    return bool(s.cluster.asks.of(app_id)) and bool(_open(s, app_id)) and not missing(s, app_id)


def start_together(s: Holdings, app_id: str) -> bool:
    """Whether the containers that the app asks for are one gang, rather than one gang each."""
    return tags.tagged(s.cluster.apps.get(app_id), tags.GANG) is not None


def missing(s: Holdings, app_id: str) -> int:
    """Containers that the app's attempt has still to ask for before its first gang can start."""
    app = s.cluster.apps.get(app_id)
    count = tags.tagged(app, tags.GANG)
    if app is None or not count or not count.isdecimal():
        return 0
    if app_id not in s.cluster.starting and (s.holding(app_id) or s.durable.apps[app_id].attained_gpu_s):
        return 0  # it began, as far as is known
    asks = [ask for ask in s.cluster.asks.of(app_id).values() if ask.attempt_id == app.attempt_id]
    asked = sum(MOST_CONTAINERS if ask.master else ask.count for ask in asks)  # the master waits for nobody
    return max(0, min(int(count[:9]), MOST_CONTAINERS) - asked)


def sizes(s: Holdings, app_id: str) -> list[int]:
    """GPUs per container of the app's asks, largest first; empty if its containers start together.

    Sizes larger than any machine are left out, unless all are.
    """
    if start_together(s, app_id):
        return []
    return list(dict.fromkeys(ask.gpus for ask, _ in _fitting(s, app_id)))


def _fitting(s: Holdings, app_id: str) -> list[tuple[Ask, int]]:
    asks = open_asks(s, app_id)
    largest = s.topology.largest_gpus
    return [entry for entry in asks if entry[0].gpus <= largest] or asks


def demand(s: Holdings, app_id: str, now_s: float, size: int = 0) -> Demand:
    """The app's demand: what it holds, and its gang or the containers of `size` GPUs that it asks for.

    `size` 0: the largest size that it asks for; if it asks for none, that of its gangs, so that it can keep them.
    """
    held = s.holding(app_id)
    members = tuple[int, ...]()
    if start_together(s, app_id):
        asks = _open(s, app_id)
        whole = size = sum(ask.gpus * n for ask, n in asks)
        wanted = int(whole > 0)
        if whole <= s.cluster.machines.gpus:  # else the gang exceeds the cluster anyway
            members = tuple(ask.gpus for ask, n in asks for _ in range(n))
    else:
        asks = _fitting(s, app_id)
        whole = sum(ask.gpus * n for ask, n in asks)
        size = size or (asks[0][0].gpus if asks else 0)
        wanted = sum(n for ask, n in asks if ask.gpus == size)
    keys = (s.gang_key(x, gpu) for x in s.durable.leases.of(app_id) for gpu in x.gpus)
    size = size or max(Counter(keys).values(), default=1)
    attained = s.durable.attained_gpu_s(app_id, now_s)
    work_left = _work_left_gpu_s(s, app_id, whole, attained, now_s)
    return Demand(
        gang_gpus=size,
        gangs=wanted + -(-held // size),
        job_demand_max=size,
        work_left_gpu_s=work_left,
        work_total_gpu_s=attained + work_left,
        work_done_gpu_s=attained,
        scope=Scope.CLUSTER if members else Scope.MACHINE,
        guessed=tags.max_s(s.cluster.apps.get(app_id)) is None,
        members=members,
    )


def _work_left_gpu_s(s: Holdings, app_id: str, whole: int, attained: float, now_s: float) -> float:
    """Its declared time for what it holds and asks for (`whole`, GPUs), else the assumption."""
    longest_s = tags.max_s(s.cluster.apps.get(app_id))
    if longest_s is None:
        return max(attained, s.lease_s_of(s.durable.apps[app_id].vc) * max(1, s.holding(app_id) + whole))
    running = (x for x in s.durable.leases.of(app_id) if x.state != REVOKING)
    left_gpu_s = sum(len(x.gpus) * max(0.0, longest_s - x.run_s(now_s)) for x in running)
    return max(1.0, left_gpu_s + longest_s * whole)


def rho(s: Holdings, app_id: str, gpus: int, now_s: float, known: Demand | None = None) -> float:
    """rho = T_sh / T_id with `gpus` GPUs; with 0 the projected one: it waits one lease, then runs a single gang.

    `known`: the app's `demand` at this time, if the caller has it.
    """
    app, want = s.durable.apps[app_id], known or demand(s, app_id, now_s)
    whole = s.holding(app_id) + sum(ask.gpus * n for ask, n in _fitting(s, app_id))
    parallel = max(1, min(s.gpus_of(app.vc), max(whole, want.gpus)))
    t_id_s = want.work_total_gpu_s / parallel * s.durable.n_avg(app_id, now_s)
    elapsed_s = max(0.0, now_s - app.submitted_s)  # the ResourceManager's clock may be ahead
    if gpus:
        return (elapsed_s + want.work_left_gpu_s / gpus) / t_id_s
    return (elapsed_s + s.lease_s_of(app.vc) + want.work_left_gpu_s / want.gang_gpus) / t_id_s


def bid(s: Holdings, view: AppView, offered: Mapping[str, int], now_s: float) -> Bid:
    """The app's bid: rows that keep more and more of its gangs on offer, which cannot move, and then add containers.

    The containers that it asks for are added one by one, or all of them where they start together.
    """
    d, own = view.demand, view.ending_gangs
    whole = demand(s, view.app_id, now_s)
    left = Counter(offered)
    for gang in own:  # by the names that the offer has: hosts, or a virtual cluster's machines
        left.subtract(dict(gang))
    room = int(pack(d.members, left) is not None) if d.members else sum(n // d.gang_gpus for n in left.values())
    new = min((view.unmet_gpus - len(view.ending)) // d.gang_gpus, room)

    def row(keep: int, add: int) -> BidRow:
        gpus = view.retained_gpus + sum(map(gang_gpus, own[:keep])) + add * d.gang_gpus
        return BidRow(rho(s, view.app_id, gpus, now_s, whole), own[:keep], add, d.gang_gpus, d.scope, members=d.members)

    rows = [row(k, 0) for k in range(1, len(own) + 1)] + [row(len(own), q) for q in range(1, new + 1)]
    return Bid(view.app_id, rho(s, view.app_id, view.retained_gpus, now_s, whole), tuple(rows))


def asks_for(s: Holdings, app_id: str, gang: Gang) -> list[Ask]:
    """The open asks that containers on these GPUs would serve, one ask per container; empty if they serve none.

    The gang's places may be machines of a virtual cluster; only their numbers of GPUs count then.
    """
    asks = _open(s, app_id)
    if start_together(s, app_id):
        members = [ask for ask, n in asks for _ in range(n)] if gang_gpus(gang) <= s.cluster.machines.gpus else []
        whole = sum(ask.gpus for ask in members) == gang_gpus(gang)
        return members if whole and pack([ask.gpus for ask in members], dict(gang)) is not None else []
    if len(gang) != 1:
        return []
    ((place, gpus),) = gang
    alike = [ask for ask, _ in asks if ask.gpus == gpus]
    known = s.cluster.node_at.get(place) is not None
    return [ask for ask in alike if not known or admits(s, ask, place)][:1]


def assign(s: Holdings, clerk: Clerk, app_id: str, gpus: Sequence[Gpu], asks: Sequence[Ask]) -> bool:
    """Plans containers for these asks on awarded GPUs, to start together; False if one may not start there."""
    on = grouped((gpu.host, gpu) for gpu in sorted(gpus))
    hosts = pack([ask.gpus for ask in asks], {host: len(here) for host, here in on.items()})
    if hosts is None or not all(admits(s, ask, host) for ask, host in zip(asks, hosts, strict=True)):
        return False
    job_id = clerk.new_id(f"{STANDIN}-{app_id}-")
    for k, (ask, host) in enumerate(zip(asks, hosts, strict=True)):
        mine, on[host] = on[host][: ask.gpus], on[host][ask.gpus :]
        worker_id = f"{job_id}.{k}" if k else job_id
        plan = WorkerPlan(worker_id, job_id, tuple(mine), ask.allocation_request_id)
        s.workers.add(PlannedWorker(app_id, STANDIN, plan, ask_key=ask.key))
    return True


Terms = tuple[str, tuple[str, ...]]
"""(node label partition, hosts or racks outside which it may not start; empty: any) of an ask."""


def terms(s: Holdings, ask: Ask) -> Terms:
    """The terms of an ask; without a node label, its partition is the queue's default."""
    return s.cluster.default_partition(ask.app_id) if ask.partition is None else ask.partition, ask.only_on


def allows(on: Terms, node: Node) -> bool:
    """Whether the terms allow a container on a node."""
    partition, only_on = on
    return node.partition == partition and (not only_on or node.host in only_on or node.rack in only_on)


def admits(s: Holdings, ask: Ask, host: str) -> bool:
    """Whether a container for the ask may start on a host that is up, by the ask's terms."""
    node = s.cluster.node_at.get(host)
    return node is not None and allows(terms(s, ask), node)
