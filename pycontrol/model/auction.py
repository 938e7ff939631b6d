"""What goes into a round and what comes out of it: offers, bids, plans and receipts (Themis, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Gpu, Scope, Topology, count_by_host
from pycontrol.model.value import value

SLOWDOWN_PRIOR = (1.0, 1.1, 1.3)
"""S on one machine, across machines of a rack, across racks, until measured (Themis, section 4.3.1)."""

Gang = tuple[tuple[str, int], ...]
"""GPUs by host of one gang, sorted by host: (("n1", 2), ("n2", 2))."""


def gang_of(machines: Mapping[str, int]) -> Gang:
    """The canonical form of a gang: positive counts only, sorted by host."""
    return tuple(sorted((host, gpus) for host, gpus in machines.items() if gpus > 0))


def as_gang(gpus: Iterable[Gpu]) -> Gang:
    """GPUs counted by host."""
    return gang_of(count_by_host(gpus))


def gangs_by_host(gangs: Iterable[Gang]) -> dict[str, int]:
    """How many GPUs these gangs have on each host."""
    counts: dict[str, int] = {}
    for gang in gangs:
        for host, n in gang:
            counts[host] = counts.get(host, 0) + n
    return counts


def gang_gpus(gang: Gang) -> int:
    """GPUs of a gang."""
    return sum(gpus for _, gpus in gang)


def gang_sizes(least: int, most: int) -> tuple[int, ...]:
    """GPUs that a gang of an elastic job may have: twice as many each time, and the most; whole smallest gangs."""
    if least < 1:
        return ()
    found, most = [least], most // least * least
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return tuple(found)


@value
class Demand:
    """What an app could use at once. Work is in serial GPU-seconds; `gangs` includes those it holds."""

    gang_gpus: int
    gangs: int
    job_demand_max: int = 0
    """GPUs that one job can use. Where that is more than `gang_gpus` its jobs are elastic: a gang may have any of
    `sizes`, `gangs` counts smallest ones, and the app itself makes of its GPUs what gangs it likes."""
    work_left_gpu_s: float = 0.0
    work_total_gpu_s: float = 0.0
    work_done_gpu_s: float = 0.0
    scope: Scope = Scope.CLUSTER
    """The widest scope in which one of its gangs can run."""
    paced: bool = False
    slowdown: tuple[float, float, float] = SLOWDOWN_PRIOR
    """S by scope: on one machine, in one rack, anywhere."""
    loss_rate: float = 0.0
    """Decrease of its loss per GPU-second at present (SLAQ); 0 where unknown."""
    speedups: Mapping[str, float] = field(default_factory=dict)
    """GPU type -> its speed there, relative to the slowest type (OEF's w); empty: all alike."""
    gpu_type: str = ""
    """The only GPU type that it takes; empty: any."""
    within: str = ""
    """The type of cell, smaller than a machine, in which each gang must lie; empty: any place within `scope`."""
    pinned: str = ""
    """The pinned cell of its virtual cluster in which all its gangs must lie; empty: any place."""
    opportunistic: bool = False
    """It uses nothing that its virtual cluster owns, and gives way to whoever does own it."""
    lazy: bool = False
    """What it owned runs on as borrowed, where the GPUs are idle, rather than being stopped (lazy preemption)."""
    mixes: bool = False
    """Whether one of its gangs may have GPUs of several types."""
    unsaved: bool = False
    """Its scripts keep no checkpoints: what is revoked starts again."""
    members: tuple[int, ...] = ()
    """GPUs of each container of a gang, the largest first, where each needs one machine; empty: split as it comes."""

    @property
    def gpus(self) -> int:
        """GPUs the app could use at once."""
        return self.gang_gpus * self.gangs

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that a new gang may have, the fewest first."""
        return gang_sizes(self.gang_gpus, max(self.gang_gpus, self.job_demand_max))


@value
class BidRow:
    """One alternative of a bid: keep these gangs of mine, add `new_gangs` gangs, each within `scope`.

    `rho` is the app's finish-time fairness with the GPUs that are not on offer plus this row.
    A row wins as a whole or not at all, before the hidden payment.
    """

    rho: float
    keep: tuple[Gang, ...] = ()
    new_gangs: int = 0
    gang_gpus: int = 1
    scope: Scope = Scope.CLUSTER
    gpu_type: str = ""
    """Of the new gangs' GPUs; empty: all of one type, whichever."""
    mixes: bool = False
    """The new gangs may have GPUs of several types, anywhere: `gpu_type` is empty and `scope` the cluster."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole row."""
        return sum(gang_gpus(g) for g in self.keep) + self.new_gangs * self.gang_gpus


@value
class Bid:
    """An app's answer to an offer. `rho_nothing` is its (projected) rho if it wins none of it."""

    app_id: str
    rho_nothing: float
    rows: tuple[BidRow, ...] = ()
    restart_s: float = 0.0
    """What it reckons that a start costs, seconds; for explanations only."""


@value
class AppView:
    """An app as a policy sees it when a round begins."""

    app_id: str
    queue: str
    rho: float | None
    """Reported for this round; None where it is not known (late, or no Agent)."""
    demand: Demand
    ending: frozenset[Gpu] = frozenset()
    """Its GPUs on offer in this round."""
    ending_gangs: tuple[Gang, ...] = ()
    """The same, gang by gang."""
    retained_gpus: int = 0
    """GPUs it holds that are not on offer."""
    queue_room_gpus: int = 1 << 30
    """GPUs it may still get, ending ones included, before its queue's limit is met."""
    submitted_s: float = 0.0
    user: str = ""
    attained_gpu_s: float = 0.0
    """GPU-seconds of service so far, running gangs included."""
    priority: int = 0
    """YARN's application priority, within a virtual cluster: the highest comes first; 0 where there are none."""
    retained_gangs: tuple[Gang, ...] = ()
    """The gangs that it holds and that are not on offer."""
    slowed_gpu_s: float = 0.0
    """Of its service, what the places that were chosen for its gangs cost, by the prior of S."""
    revoked_gpus: int = 0
    """How often a GPU was taken back from it."""
    spared: bool = False
    """Among equals it is revoked last, for it keeps no checkpoints and the operator allows it."""

    @property
    def unmet_gpus(self) -> int:
        """GPUs it could use of an offer."""
        return max(0, min(self.demand.gpus - self.retained_gpus, self.queue_room_gpus))


@value
class Snapshot:
    """A round's input."""

    round_id: str
    now_s: float
    topology: Topology
    free: Mapping[str, int]
    """GPUs on offer by host: free ones and those whose leases end in this round."""
    apps: tuple[AppView, ...]
    f: float = 0.8
    lease_s: float = 600.0
    queues: Mapping[str, Queue] = field(default_factory=dict)
    vc: str = ""
    """The virtual cluster whose round this is; empty where there are none."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What the policy's last plan asked to be remembered (`Plan.memory`), as plain JSON values."""
    present: frozenset[str] = frozenset()
    """All apps in the virtual cluster, those that want nothing now included."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """App id -> GPU-seconds of service that it had: those that `memory` names under `apps` and that are not present."""
    owned_gpus: int = 0
    """R_C: GPUs of the virtual cluster, whatever this round is about; 0 stands for all machines' GPUs."""
    private: bool = False
    """Whether the machines are those that the virtual cluster's own cells are, rather than hosts."""
    lead_s: float = 0.0
    """How long before leases end their round is held."""

    @property
    def cluster_gpus(self) -> int:
        """R_C."""
        return self.owned_gpus or self.topology.gpus


@value
class Offer:
    """Who is asked for bids on `Snapshot.free`, worst rho first."""

    app_ids: tuple[str, ...]


@value
class Award:
    """What one app gets of a round, gang by gang; a gang equal to one of its `ending_gangs` keeps it there."""

    app_id: str
    gangs: tuple[Gang, ...]
    leftover: bool = False
    until_s: float | None = None
    """Lent: its lease ends then at the latest."""


@value
class Hold:
    """GPUs that stay with nobody until then, or are lent until then, so that a named app's gang comes together."""

    app_id: str
    gang: Gang
    until_s: float


@value
class BidReceipt:
    """How one bidder fared."""

    app_id: str
    rho_nothing: float
    rows: int
    won: Mapping[str, int] = field(default_factory=dict)
    """GPUs by host in G_pf, before the payment."""
    rho_won: float | None = None
    c: float = 1.0
    """Fraction it keeps; 1 - c is the hidden payment."""
    kept_gangs: int = 0
    paid_gangs: int = 0


@value
class Plan:
    """A policy's decision for a round, with all that is needed to explain it."""

    round_id: str
    awards: tuple[Award, ...]
    bids: tuple[BidReceipt, ...] = ()
    leftover_gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs by host left after payments, before leftovers were given to apps outside the auction."""
    unused_gpus: Mapping[str, int] = field(default_factory=dict)
    objective_log: float = 0.0
    """Sum of -log rho at G_pf."""
    proved_optimal: bool = True
    gap: float = 0.0
    solve_s: float = 0.0
    seed: int = 0
    note: str = ""
    why: Mapping[str, str] = field(default_factory=dict)
    """App id -> one sentence on why it got what it got, for policies whose bids do not say it."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that the next round's snapshot brings back; journaled, so they survive a restart."""
    holds: tuple[Hold, ...] = ()
    """What is not given away though it is free."""
