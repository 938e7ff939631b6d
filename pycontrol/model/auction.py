"""What goes into a round and what comes out of it: offers, bids, plans and receipts (Themis, section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.cluster import Queue
from pycontrol.model.grouping import summed
from pycontrol.model.topology import Gpu, Scope, Topology, count_by_host
from pycontrol.model.value import value

BOOSTED = 1 << 32
"""Added to the priority of a boosted app, so that it is above all that YARN has (int32)."""
SLOWDOWN_PRIOR = (1.0, 1.1, 1.3)
"""S on one machine, across machines of a rack, across racks, until measured (Themis, section 4.3.1)."""

Gang = tuple[tuple[str, int], ...]
"""The GPUs of one gang counted by host, sorted by host: (("n1", 2), ("n2", 2))."""


def gang_of(machines: Mapping[str, int]) -> Gang:
    """The canonical form of a gang: positive counts only, sorted by host."""
    return tuple(sorted((host, gpus) for host, gpus in machines.items() if gpus > 0))


def as_gang(gpus: Iterable[Gpu]) -> Gang:
    """The gang of these GPUs: counted by host."""
    return gang_of(count_by_host(gpus))


def gangs_by_host(gangs: Iterable[Gang]) -> dict[str, int]:
    """Host -> GPUs that these gangs have there."""
    return summed(part for gang in gangs for part in gang)


def gang_gpus(gang: Gang) -> int:
    """The number of GPUs of a gang."""
    return sum(gpus for _, gpus in gang)


def gang_sizes(least: int, most: int) -> tuple[int, ...]:
    """GPUs that a gang of an elastic job may have: `least`, doubled repeatedly, and the largest multiple of `least` up
    to `most`."""
    if least < 1:
        return ()
    found, most = [least], most // least * least
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return tuple(found)


SEGMENTS_MAX = 1024
"""The most segments of a gang."""


def segments(gang_gpus: int, count: int, scope: Scope) -> tuple[int, ...]:
    """`Demand.members` of a gang of `count` equal segments, each within `scope`: MACHINE or RACK."""
    each = gang_gpus // max(1, count)
    return (each if scope is Scope.MACHINE else -each,) * count


@value
class Demand:
    """What an app could use at the same time. Work is in serial GPU-seconds; `gangs` includes those it holds."""

    gang_gpus: int
    gangs: int
    job_demand_max: int = 0
    """The most GPUs that one job can use. If larger than `gang_gpus`, jobs are elastic: a gang may have any of `sizes`,
    `gangs` counts gangs of the smallest size, and the app divides its GPUs into gangs itself."""
    work_left_gpu_s: float = 0.0
    work_total_gpu_s: float = 0.0
    work_done_gpu_s: float = 0.0
    scope: Scope = Scope.CLUSTER
    """The widest scope in which one of its gangs can run."""
    paced: bool = False
    slowdown: tuple[float, float, float] = SLOWDOWN_PRIOR
    """S by scope: on one machine, in one rack, anywhere."""
    loss_rate: float = 0.0
    """Present decrease of its loss per GPU-second (SLAQ); 0 if unknown."""
    speedups: Mapping[str, float] = field(default_factory=dict)
    """GPU type -> its speed there, relative to the slowest type (OEF's w); empty: the same on all."""
    gpu_type: str = ""
    """The only GPU type that it takes; empty: any."""
    within: str = ""
    """The type of cell, smaller than a machine, in which each gang, or each of its members, must lie; empty: any."""
    pinned: str = ""
    """The pinned cell of its virtual cluster in which all its gangs must lie; empty: any place."""
    opportunistic: bool = False
    """Whether it only borrows: it uses none of its virtual cluster's own cells, and is evicted when an owner needs the
    GPUs."""
    lazy: bool = False
    """Whether gangs that lose their guaranteed cells continue as borrowed while their GPUs are idle, instead of being
    revoked (lazy preemption)."""
    mixes: bool = False
    """Whether one of its gangs may have GPUs of several types."""
    unsaved: bool = False
    """Whether its scripts write no checkpoints, so that a revoked job starts from the beginning."""
    guessed: bool = False
    """Whether nobody declared its work: the stand-in derives it from its attained service."""
    members: tuple[int, ...] = ()
    """GPUs of each part of a gang, the largest first, if each must lie on one machine: a container, or a segment; those
    of segments that must each lie in one rack are negative. Empty: any split."""

    @property
    def gpus(self) -> int:
        """GPUs that the app could use at the same time."""
        return self.gang_gpus * self.gangs

    @property
    def piece_gpus(self) -> int:
        """GPUs that must lie in one cell of the type `within`."""
        return self.members[0] if self.members else self.gang_gpus

    def speed_on(self, gpu_type: str) -> float:
        """Its speed on a type; 1 if it was not measured, 0 if it does not take the type."""
        return float(self.speedups.get(gpu_type, 1.0)) if self.gpu_type in ("", gpu_type) else 0.0

    def room(self, free: Sequence[int]) -> int:
        """GPUs of a machine's cells of the type `within` that one of its gangs could use, by the free GPUs of each."""
        piece = self.piece_gpus
        return sum(n // piece for n in free) * piece if self.members else max(free, default=0)

    @property
    def parts(self) -> str:
        """How the members of a gang must lie, for people; empty if it has none."""
        sizes = " + ".join(f"{n} x {gpus}" for gpus, n in Counter(map(abs, self.members)).items())
        where = "in one rack" if min(self.members, default=0) < 0 else "on one machine"
        where = f"within one {self.within}" if self.within else where
        return f"{sizes} GPUs, each {where}" if sizes else ""

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that a new gang may have, ascending."""
        return gang_sizes(self.gang_gpus, max(self.gang_gpus, self.job_demand_max))


@value
class BidRow:
    """One alternative of a bid: keep the gangs in `keep` and add `new_gangs` gangs, each within `scope`.

    `rho` is the app's finish-time fairness with its GPUs that are not on offer and those of this row.
    A row wins as a whole or not at all, before the hidden payment.
    """

    rho: float
    keep: tuple[Gang, ...] = ()
    new_gangs: int = 0
    gang_gpus: int = 1
    scope: Scope = Scope.CLUSTER
    gpu_type: str = ""
    """GPU type of the new gangs; empty: any one type, the same for all."""
    mixes: bool = False
    """Whether new gangs may mix GPU types; then `gpu_type` is empty and `scope` is CLUSTER."""
    members: tuple[int, ...] = ()
    """Those of its app's demand, for new gangs."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole row."""
        return sum(gang_gpus(g) for g in self.keep) + self.new_gangs * self.gang_gpus


@value
class Bid:
    """An app's answer to an offer. `rho_nothing` is its rho if it wins nothing; projected if it then has no GPUs."""

    app_id: str
    rho_nothing: float
    rows: tuple[BidRow, ...] = ()
    restart_s: float = 0.0
    """The app's estimate of the cost of a start, seconds; used only in explanations."""


NO_ROOM = -(1 << 30)
"""The room of an app that may not even keep its GPUs on offer, because a budget is used up."""


@value
class AppView:
    """A policy's view of an app when a round begins."""

    app_id: str
    queue: str
    rho: float | None
    """Its rho as reported; None if it is not known."""
    demand: Demand
    ending: frozenset[Gpu] = frozenset()
    """Its GPUs on offer in this round."""
    ending_gangs: tuple[Gang, ...] = ()
    """The same, gang by gang."""
    unsaved_s: tuple[float, ...] = ()
    """For each of them, the seconds that it would train again if it stopped now, as seen (`Holdings.unsaved_s`)."""
    retained_gpus: int = 0
    """GPUs it holds that are not on offer."""
    rooms: Mapping[str, int] = field(default_factory=dict)
    """Limit that it counts for, such as its queue's -> GPUs, including ending ones, that it may get before the limit is
    reached; NO_ROOM: none, not even its ending ones."""
    submitted_s: float = 0.0
    user: str = ""
    attained_gpu_s: float = 0.0
    """Attained service in GPU-seconds, including running gangs."""
    priority: int = 0
    """YARN's application priority within a virtual cluster, the highest first; 0 without virtual clusters. That of a
    boosted app is higher by `BOOSTED`."""
    retained_gangs: tuple[Gang, ...] = ()
    """The gangs that it holds and that are not on offer, with reserved ones."""
    slowed_gpu_s: float = 0.0
    """The part of its attained service lost to slow placements, by the prior of S, GPU-s."""
    launching_gpu_s: float = 0.0
    """The part that launches on new grants take on this cluster, GPU-s; 0 until that was measured."""
    revoked_gpus: int = 0
    """The number of its revocations, counted by GPU."""
    new_gangs_max: int = 1 << 30
    """How many gangs it can start now: those that an app without an Agent asks for, as its containers cannot move."""

    @property
    def unmet_gpus(self) -> int:
        """GPUs of an offer that it could use."""
        return max(0, min([self.demand.gpus - self.retained_gpus, *self.rooms.values()]))


@value
class Snapshot:
    """The input of a policy for a round."""

    round_id: str
    now_s: float
    topology: Topology
    free: Mapping[str, int]
    """GPUs on offer by host: free ones and those with leases that end in this round."""
    apps: tuple[AppView, ...]
    f: float = 0.8
    lease_s: float = 600.0
    queues: Mapping[str, Queue] = field(default_factory=dict)
    vc: str = ""
    """The virtual cluster of the round; empty without virtual clusters."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """The memory of the policy's last plan (`Plan.memory`), as JSON values."""
    present: frozenset[str] = frozenset()
    """All active apps of the virtual cluster, including those that want nothing now."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """App id -> attained service in GPU-s, for apps that `memory["apps"]` names and that are not present."""
    owned_gpus: int = 0
    """R_C: all GPUs of the virtual cluster, also if it shares out borrowed ones; 0: the GPUs of all machines."""
    private: bool = False
    """Whether the machines are the virtual cluster's own, rather than hosts."""
    lead_s: float = 0.0
    """The lead, seconds."""
    accounts: Accounts = NO_ACCOUNTS

    @property
    def cluster_gpus(self) -> int:
        """R_C."""
        return self.owned_gpus or self.topology.gpus


@value
class Contention:
    """What an Agent needs to compute rho (Themis, section 4.3)."""

    cluster_gpus: int
    n_avg: float
    now_s: float
    submitted_s: float
    lease_s: float


@value
class Offer:
    """The apps that are asked for bids on `Snapshot.free`, worst rho first."""

    app_ids: tuple[str, ...]


@value
class Award:
    """The gangs that one app gets in a round; a gang equal to one of its `ending_gangs` is kept in place."""

    app_id: str
    gangs: tuple[Gang, ...]
    leftover: bool = False
    until_s: float | None = None
    """The latest end of its leases, for a loan of held GPUs; None: the usual end."""


@value
class Hold:
    """GPUs kept free, or lent, until a time, so that enough are free together for an app's gang."""

    app_id: str
    gang: Gang
    until_s: float


@value
class BidReceipt:
    """The result of one bidder."""

    app_id: str
    rho_nothing: float
    rows: int
    won: Mapping[str, int] = field(default_factory=dict)
    """GPUs by host that it won, before the payment (its part of G_pf)."""
    rho_won: float | None = None
    c: float = 1.0
    """The fraction that it keeps; 1 - c is the hidden payment."""
    kept_gangs: int = 0
    paid_gangs: int = 0


@value
class Plan:
    """A policy's decision for a round, with everything needed to explain it."""

    round_id: str
    awards: tuple[Award, ...]
    bids: tuple[BidReceipt, ...] = ()
    leftover_gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs by host after payments, before leftovers are given to apps outside the auction."""
    unused_gpus: Mapping[str, int] = field(default_factory=dict)
    objective_log: float = 0.0
    """The sum of -log rho at G_pf."""
    proved_optimal: bool = True
    gap: float = 0.0
    solve_s: float = 0.0
    seed: int = 0
    note: str = ""
    why: Mapping[str, str] = field(default_factory=dict)
    """App id -> one sentence on why it got GPUs, for policies without bids that explain it."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for the next round's `Snapshot.memory`; journaled, so they survive a restart."""
    holds: tuple[Hold, ...] = ()
    """Free GPUs that are held for gangs."""


@value
class HeldGrant:
    """The GPUs that an app holds under one grant, with the end of their leases and when they are available."""

    grant_id: str
    gpus: tuple[Gpu, ...]
    end_s: float
    available_s: float = 0.0
