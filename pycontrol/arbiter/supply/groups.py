"""The affinity groups that cells hold: for each grant, its GPUs that are leased or reserved and not being revoked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, LeaseEnded, LeaseRevoking, NextDropped
from pycontrol.arbiter.ledger.lease import REVOKING, Lease, Reservation, Step, gpus_in, is_revoking
from pycontrol.arbiter.supply.port import GroupGpus, Supply

Claims = Sequence[Lease | Reservation]


class Groups:
    """Releases a group in the supply when no GPU of it is left, and notes the groups that lost some."""

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

    def note(self, fact: Fact, step: Step, d: Durable, supply: Supply) -> None:
        """Notes what a fact did to leases."""
        lost: Claims = ()
        if isinstance(fact, NextDropped):
            lost = step.reservations
        elif isinstance(fact, LeaseRevoking | LeaseEnded):
            lost = [x for x in step.before if x.state != REVOKING]
        for group, app_id in {x.grant_id: x.app_id for x in lost}.items():
            if group not in d.grants:
                self.shrunk.pop(group, None)
                supply.release(group)
            else:
                self.shrunk[group] = app_id

    def tell_shrunk(self, d: Durable, supply: Supply) -> tuple[str, ...]:
        """Tells the supply which GPUs are left in groups that lost some; returns those that borrow from now on."""
        shrunk, self.shrunk = self.shrunk, {}
        found = []
        for group, app_id in shrunk.items():
            gang = [x for x in d.claims_of(app_id) if x.grant_id == group and not is_revoking(x)]
            if gang and not supply.shrink(_group(group, d.apps[app_id].vc, gang)):  # else another app's tag names it
                found.append(group)
        return tuple(found)

    def adopted(self) -> None:
        """A container was adopted that the supply does not know."""
        self.outdated = True

    def tell_all(self, d: Durable, supply: Supply) -> Mapping[str, bool]:
        """Gives the supply all groups; returns whether those that changed are guaranteed from now on."""
        self.outdated, self.shrunk = False, {}
        held = _held(d)
        return supply.recover(_group(group, d.apps[gang[0].app_id].vc, gang) for group, gang in held.items())

    def validate(self, d: Durable, supply: Supply) -> Iterator[tuple[str | None, str]]:
        """Yields (app or None, what is wrong) if the cells' groups do not match the leases."""
        if self.outdated:
            return
        held = _held(d)
        told = supply.guarantees()
        for group in told.keys() - held.keys():
            yield None, f"the cells have the group {group}, which holds no GPUs"
        for group, gang in held.items():
            if {x.guaranteed for x in gang} != {told.get(group, supply.whole)}:
                owns = "guaranteed" if told.get(group) else "borrowed"
                yield gang[0].app_id, f"the cells say that {group} is {owns}, its leases say otherwise"


def _group(group: str, vc: str, gang: Claims) -> GroupGpus:
    return GroupGpus(group, vc, gang[0].guaranteed, tuple(sorted(gpus_in(gang))))


def _held(d: Durable) -> Mapping[str, Claims]:
    held: dict[str, list[Lease | Reservation]] = {}
    for x in d.claims():
        if not is_revoking(x):
            held.setdefault(x.grant_id, []).append(x)
    return held
