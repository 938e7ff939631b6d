"""The supply of GPUs: which ones each virtual cluster may use (HiveD, section 3), and so what a round shares out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

from mypy_extensions import mypyc_attr

from pycontrol.arbiter.ledger.lease import Claim, gpus_in, is_revoking
from pycontrol.cells.cluster_cells import Cells
from pycontrol.cells.exchange import Deal, Exchange
from pycontrol.cells.layout import Layout, Terms
from pycontrol.cells.machines import Room, VirtualMachine
from pycontrol.cells.values import Placed
from pycontrol.model.auction import Demand, Gang
from pycontrol.model.grouping import grouped, summed
from pycontrol.model.topology import Gpu, Topology
from pycontrol.model.value import value

AS_CONFIGURED = Terms()
"""The terms of a virtual cluster without its own: those of isonomy.yaml."""


@value
class RoundPart:
    """What one round shares out among the apps of a virtual cluster: GPUs of its own machines (its private cluster), or
    of hosts with idle GPUs that it may borrow until their owner needs them.

    Without virtual clusters all hosts are the own machines of all apps, whose virtual cluster is "".
    """

    vc: str
    guaranteed: bool
    """Whether the machines are its own."""
    free: Mapping[str, int]
    """GPUs on offer by machine: free ones, and those that come free for this round."""
    topology: Topology
    usable: Mapping[str, int]
    """GPUs by machine that may ever be leased."""
    host_of: Mapping[str, str] = field(default_factory=dict)
    """Machine -> the host to which it is, or would be, bound; empty where hosts are the machines."""
    bound: frozenset[str] = frozenset()
    """Machines that are bound; the others may still be bound elsewhere."""
    without: frozenset[str] = frozenset()
    """Apps excluded from the part, as cells could not hold their gangs in the part before."""
    pinned: Mapping[str, str] = field(default_factory=dict)
    """Machine -> the pinned cell that it belongs to, for those that do."""

    @property
    def owner(self) -> str | None:
        """The virtual cluster whose own machines these are; None where they are hosts."""
        return self.vc if self.vc and self.guaranteed else None

    def admits(self, demand: Demand) -> bool:
        """Whether an app with this demand takes part: opportunistic apps only borrow, pinned ones never do."""
        return not ((demand.opportunistic and self.owner) or (demand.pinned and not self.guaranteed))

    def on(self, hosts: Topology) -> RoundPart:
        """The part on the hosts that are there now; own machines stay what they were when it began."""
        if self.owner is not None:
            return self
        there = self.free.keys() <= hosts.machines.keys()
        free = self.free if there else {host: n for host, n in self.free.items() if host in hosts.machines}
        return replace(self, topology=hosts, free=free)

    def by_host(self, gpus: Mapping[str, int]) -> dict[str, int]:
        """Converts GPUs by machine to GPUs by host."""
        if not self.host_of:
            return dict(gpus)
        return summed((self.host_of.get(name, name), n) for name, n in gpus.items())


@value
class GroupGpus:
    """The GPUs of one affinity group; its name is the id of its grant."""

    group: str
    vc: str
    guaranteed: bool
    gpus: tuple[Gpu, ...]


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have the simplest possible cells
class Supply:
    """Which GPUs exist for whom. This one is of a cluster without virtual clusters: any app may use any GPU, and
    nothing is owned, lent or evicted; `CellSupply` has the cells of virtual clusters.

    Apps in records of a cells file that is no longer configured move to the virtual cluster "" at the first snapshot.
    """

    def __init__(self, pick: Callable[[Gang], Sequence[Gpu]] = lambda _: ()) -> None:
        """`pick`: the GPUs that a gang gets on its hosts; none if these have too few."""
        self._pick = pick
        self.layout: Layout | None = None
        """The layout of the cells file, without deals; None without one."""
        self.exchange = Exchange(Cells(Layout((), ())))
        """Bulletin board, deals and books; nobody has cells to exchange here."""

    @property
    def whole(self) -> bool:
        """Whether there are no virtual clusters: the whole cluster is one part, and nothing is borrowed."""
        return self.layout is None

    def vc_of(self, queue: str) -> str:
        """The virtual cluster of a leaf queue; empty for a queue without one."""
        return ""

    def gpus_of(self, vc: str) -> int:
        """GPUs of a virtual cluster (its R_C); 0 for the empty name."""
        return 0

    def terms(self, vc: str) -> Terms:
        """The policy, f and lease length that a virtual cluster sets for itself."""
        return AS_CONFIGURED

    def virtual_clusters(self) -> Iterable[str]:
        """The names of all virtual clusters."""
        return ()

    def machines(self, vc: str) -> Sequence[VirtualMachine]:
        """The virtual cluster's own machines, each with its GPUs that none of its groups holds."""
        return ()

    def machine_of(self, gpu: Gpu) -> str:
        """The virtual cluster's machine that holds a GPU of a guaranteed group."""
        return gpu.host

    def groups_to_move(self, vc: str) -> Sequence[Sequence[str]]:
        """The groups in each cell of a virtual cluster that has bad GPUs, where it could have a cell with fewer."""
        return ()

    def idle(self) -> Mapping[str, int]:
        """Idle GPUs by host."""
        return {}

    def weights(self) -> Mapping[str, float]:
        """Virtual cluster -> its weight in borrowing."""
        return {}

    def shares(self, wanted: Mapping[str, int], idle_gpus: int) -> Mapping[str, int]:
        """Virtual cluster -> its weighted max-min share of idle GPUs, at most what it wants."""
        return {}

    def room_within(self, kind: str, vc: str | None, coming: Iterable[Gpu] = ()) -> Mapping[str, Room]:
        """Free GPUs of each cell of type `kind`, and GPUs of such a cell.

        By machine of a virtual cluster, or (`vc` None) by host for idle GPUs; entries without such a cell are missing.
        `coming`: GPUs with leases that end; they count as free.
        """
        return {}

    def cell_of(self, gpu: Gpu, kind: str) -> tuple[int, int] | None:
        """The physical cell of type `kind` that holds the GPU, as (chain, number); None if there is none."""
        return None

    def place(
        self, group: str, vc: str, guaranteed: bool, gang: Gang, avoid: Sequence[frozenset[str]] = (),
        within: str = "", spared: Collection[str] = (),
    ) -> Placed | None:  # fmt: skip
        """Takes cells for a gang, on the virtual cluster's own machines if `guaranteed`, else on hosts.

        `avoid`: for each part of the gang, the hosts to which its machine must not be bound; or none. The GPUs of each
        part lie in one cell of the type `within`; then several parts may be on one machine. The evicted groups are
        released. None if it does not fit. If one of `spared` would be evicted, nothing is taken, and `Placed` names
        such groups and no GPUs.
        """
        gpus = self._pick(gang)
        return Placed(tuple(gpus)) if gpus else None

    def own(self, group: str, vc: str, gang: Gang) -> bool:
        """Makes a borrowing group guaranteed in place, using these GPUs of own machines; False if it cannot be."""
        return False

    def downgrade(self, group: str) -> bool:
        """Makes a guaranteed group a borrowing one in place; False if it was not guaranteed."""
        return False

    def release(self, group: str) -> None:
        """Frees the cells of a group that ended or is being revoked."""

    def shrink(self, held: GroupGpus) -> bool:
        """Makes those in `held` the GPUs of a group that lost some; False if it was guaranteed and borrows now."""
        return True

    def machines_changed(self, up: Mapping[str, Collection[int]]) -> None:
        """Replaces what is known of all hosts. `up`: host in use -> indices of its good GPUs."""

    def machine_changed(self, host: str, up: Collection[int]) -> None:
        """Updates one host. `up`: indices of its good GPUs; empty if it is away or drained."""

    def recover(self, groups: Iterable[GroupGpus]) -> Mapping[str, bool]:
        """Replaces all groups by these; returns those that changed, and whether they are guaranteed now."""
        return {x.group: True for x in groups if not x.guaranteed}

    def guarantees(self) -> Mapping[str, bool]:
        """Group -> whether it is guaranteed; groups on machines that the cells do not know are missing."""
        return {}

    def reconfigure(self, layout: Layout, now_s: float) -> None:
        """Changes the assignment of cells and keeps the deals; the caller must recover the groups afterwards."""
        raise ValueError("there are no virtual clusters; name a cells file in isonomy.yaml and start again")

    def restore(self, data: Mapping[str, Any], now_s: float) -> bool:
        """Loads the exchange from `Exchange.dump` (empty: a new one), and returns whether anybody can exchange cells;
        the caller must recover the groups afterwards."""
        return False

    def trade(self, now_s: float) -> tuple[list[Deal], list[str]]:
        """Ends the deals that are due and makes new ones; returns (new deals, groups that now borrow)."""
        return [], []

    def inspect(self) -> Mapping[str, Any]:
        """The state of all cells, as JSON values."""
        return {"groups": (), "physical_cluster": (), "virtual_clusters": {}, "cell_types": {}}


class Claimed(Protocol):
    """The part of the durable state that groups follow from."""

    apps: dict[str, Any]

    def claims(self) -> list[Claim]: ...

    def claims_of(self, app_id: str) -> list[Claim]: ...


class Groups:
    """The affinity groups that cells hold: for each grant, its GPUs that are leased or reserved and not being revoked.

    Releases a group in the supply when no GPU of it is left, and notes the groups that lost some.
    """

    def __init__(self) -> None:
        self.outdated = False
        """Whether containers were adopted that the supply does not know yet."""
        self.shrunk: dict[str, str] = {}
        """Grant -> its app, for grants that lost some GPUs and that the supply does not know about yet."""

    def copy(self) -> Groups:
        """An independent copy."""
        other = Groups()
        other.outdated, other.shrunk = self.outdated, dict(self.shrunk)
        return other

    def note(self, lost: Iterable[Claim], left: Mapping[str, int], supply: Supply) -> None:
        """Notes leases and reservations that apps lost; `left`: grant -> GPUs that it still has."""
        for group, app_id in {x.grant_id: x.app_id for x in lost}.items():
            if group not in left:
                self.shrunk.pop(group, None)
                supply.release(group)
            else:
                self.shrunk[group] = app_id

    def tell_shrunk(self, d: Claimed, supply: Supply) -> tuple[str, ...]:
        """Tells the supply which GPUs are left in groups that lost some; returns those that borrow from now on."""
        shrunk, self.shrunk = self.shrunk, {}
        left = ((group, _held(d.claims_of(app_id)).get(group)) for group, app_id in shrunk.items())
        held = {group: claims for group, claims in left if claims}  # none if another app's container names the group
        return tuple(x.group for x in _groups(held, d) if not supply.shrink(x))

    def adopted(self) -> None:
        """A container was adopted that the supply does not know."""
        self.outdated = True

    def tell_all(self, d: Claimed, supply: Supply) -> Mapping[str, bool]:
        """Gives the supply all groups; returns whether those that changed are guaranteed from now on."""
        self.outdated, self.shrunk = False, {}
        return supply.recover(_groups(_held(d.claims()), d))

    def validate(self, claims: Iterable[Claim], supply: Supply) -> Iterator[tuple[str | None, str]]:
        """Yields (app or None, what is wrong) if the cells' groups do not match the leases."""
        if self.outdated:
            return
        held, told = _held(claims), supply.guarantees()
        for group in told.keys() - held.keys():
            yield None, f"the cells have the group {group}, which holds no GPUs"
        for group, gang in held.items():
            if {x.guaranteed for x in gang} != {told.get(group, supply.whole)}:
                owns = "guaranteed" if told.get(group) else "borrowed"
                yield gang[0].app_id, f"the cells say that {group} is {owns}, its leases say otherwise"


def _held(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    return grouped((x.grant_id, x) for x in claims if not is_revoking(x))


def _groups(held: Mapping[str, Sequence[Claim]], d: Claimed) -> Iterator[GroupGpus]:
    for group, gang in held.items():
        yield GroupGpus(group, d.apps[gang[0].app_id].vc, gang[0].guaranteed, tuple(sorted(gpus_in(gang))))


def deals_of(exchange: Mapping[str, Any], vc: str | None = None) -> list[dict[str, Any]]:
    """The recorded deals of one virtual cluster, or of all (None), as JSON values."""
    deals: list[dict[str, Any]] = list(exchange.get("deals", ()))
    return [d for d in deals if vc is None or vc in (d["owner"], d["tenant"])]
