"""Snapshots for tests of policies, built by hand or at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from hypothesis import strategies as st

from pycontrol.model.auction import NO_ROOM, AppView, Bid, BidRow, Demand, Gang, Offer, Snapshot, gang_gpus, gang_of
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Gpu, Machine, Scope, Topology

CLUSTER = Topology.of(
    [
        *(Machine(f"n{i}", "a", 4, "V100") for i in (1, 2)),
        *(Machine(f"n{i}", "b", 2, "K80") for i in (3, 4)),
        Machine("n5", "c", 1, "K80"),
    ]
)
DEMAND = Demand(1, 2, 1, work_left_gpu_s=1000.0, work_total_gpu_s=1000.0)
QUEUES = {q: Queue(q, c, m) for q, c, m in (("root.a", 0.6, 1.0), ("root.b", 0.4, 0.6))}


def app(app_id: str, gang: int = 1, gangs: int = 2, **more: object) -> AppView:
    """An app that could use `gangs` gangs of `gang` GPUs; `more`: fields of its view or of its demand."""
    names = {f.name for f in fields(Demand)}
    of_demand = {k: v for k, v in more.items() if k in names}
    demand = replace(DEMAND, gang_gpus=gang, gangs=gangs, **of_demand)  # type: ignore[arg-type]
    view = {k: v for k, v in more.items() if k not in of_demand}
    ending = view.get("ending_gangs", ())
    view.setdefault("ending", frozenset(_gpus(ending)))  # type: ignore[arg-type]
    return replace(AppView(app_id, "root.a", 1.0, demand), **view)  # type: ignore[arg-type]


def _gpus(gangs: tuple[Gang, ...]) -> list[Gpu]:
    """Distinct GPUs with as many on each host as the gangs have there."""
    return [Gpu(h, 10 * k + i) for k, gang in enumerate(gangs) for h, n in gang for i in range(n)]


def snapshot(*apps: AppView, free: Mapping[str, int] | None = None, top: Topology = CLUSTER) -> Snapshot:
    """A snapshot of these apps with all GPUs of the cluster on offer, or `free`."""
    offered = {h: m.gpus for h, m in top.machines.items()} if free is None else free
    return Snapshot("r1", 0.0, top, offered, apps, lease_s=600.0)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Random snapshots of a busy cluster: some gangs run on, some end, some GPUs are free, some apps wait."""
    left = {h: m.gpus for h, m in CLUSTER.machines.items()}
    held = dict.fromkeys(QUEUES, 0)
    retained_gpus = 0
    drawn = []
    for i in range(draw(st.integers(0, 7))):
        size = draw(st.sampled_from([1, 1, 2, 3, 4]))
        queue = draw(st.sampled_from(sorted(QUEUES)))
        gangs: list[list[Gang]] = [[], []]
        limit = int(QUEUES[queue].max_capacity * CLUSTER.gpus)
        for _ in range(draw(st.integers(0, 2))):
            n = draw(st.sampled_from([size, size, size, 1]))  # sometimes another size than it wants now
            gang = _draw_gang(draw, n, left)
            if gang and held[queue] + n <= limit:
                for h, k in gang:
                    left[h] -= k
                held[queue] += n
                ending = draw(st.booleans())
                gangs[ending].append(gang)
                retained_gpus += 0 if ending else n
        drawn.append((i, size, queue, gangs))
    free = {h: n for h, n in left.items() if n and draw(st.integers(0, 4))}
    for _, _, _, (_, ending_gangs) in drawn:
        for h, n in (pair for gang in ending_gangs for pair in gang):
            free[h] = free.get(h, 0) + n
    spare = draw(st.none() | st.integers(-3, 4) | st.just(NO_ROOM))  # of a user who has every other app
    views = [_view(draw, *x, held, None if i % 2 else spare) for i, x in enumerate(drawn)]
    return replace(snapshot(*views, free=free), queues=QUEUES)


def _draw_gang(draw: st.DrawFn, size: int, left: Mapping[str, int]) -> Gang | None:
    hosts = draw(st.permutations(sorted(left)))
    gang: dict[str, int] = {}
    for host in hosts:
        n = draw(st.integers(0, min(size, left[host])))
        gang[host] = n
        size -= n
    return None if size else gang_of(gang)


def _view(
    draw: st.DrawFn, i: int, size: int, queue: str, gangs: list[list[Gang]], held: Mapping[str, int], spare: int | None
) -> AppView:
    kept, ending = gangs
    ending_gpus = sum(map(gang_gpus, ending))
    limit = QUEUES[queue].max_capacity
    rooms = {f"queue {queue}": int(limit * CLUSTER.gpus + 1e-9) - held[queue] + ending_gpus} if limit < 1 else {}
    if spare is not None:
        rooms["user u"] = spare if spare == NO_ROOM else spare + ending_gpus
    return app(
        f"a{i}",
        size,
        draw(st.integers(0, 4)),
        rho=draw(st.none() | st.floats(0.1, 9.0)),
        queue=queue,
        rooms=rooms,
        ending_gangs=tuple(ending),
        retained_gangs=tuple(kept),
        retained_gpus=sum(map(gang_gpus, kept)),
        submitted_s=float(draw(st.integers(0, 3))),
        attained_gpu_s=float(draw(st.integers(0, 3)) * 600),
        scope=draw(st.sampled_from(list(Scope))),
        gpu_type=draw(st.sampled_from(["", "", "", "V100", "K80"])),
        slowdown=draw(st.sampled_from([(1.0, 1.0, 1.0), (1.0, 1.1, 1.3), (1.0, 1.5, 2.5)])),
        loss_rate=draw(st.sampled_from([0.0, 1e-4, 1e-3])),
        work_left_gpu_s=float(draw(st.integers(0, 5)) * 1000),
        job_demand_max=draw(st.sampled_from([size, size, 2 * size, 3 * size, 4 * size])),
    )


def truthful_bids(s: Snapshot, offer: Offer | None) -> dict[str, Bid]:
    """The bids of truthful apps: rho falls with each gang, kept or new, and rises with the scope."""
    bids = {}
    for v in s.apps:
        if offer is None or v.app_id not in offer.app_ids:
            continue
        rho = v.rho or 1.0
        same = tuple(g for g in v.ending_gangs if gang_gpus(g) == v.demand.gang_gpus)
        rows = [
            BidRow(rho / (1 + q + k) * (1 + 0.1 * v.demand.scope), same[:k], q, v.demand.gang_gpus, v.demand.scope)
            for k in range(len(same) + 1)
            for q in range(max(0, v.demand.gangs - k) + 1)
            if k + q
        ]
        bids[v.app_id] = Bid(v.app_id, rho * 1.5, tuple(rows))
    return bids
