"""The affinity groups that cells hold: for each grant, its GPUs that are leased or reserved and not being revoked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pycontrol.arbiter.durable import Durable
from pycontrol.arbiter.facts import Fact, LeaseEnded, LeaseGranted, LeaseRevoking, NextDropped
from pycontrol.arbiter.lease import REVOKING, Lease, Reservation
from pycontrol.arbiter.supply import GroupGpus, Supply

Claims = Sequence[Lease | Reservation]


class Groups:
    """Counts the GPUs of each group fact by fact, and releases a group in the supply when none is left."""

    def __init__(self) -> None:
        self.gpus: dict[str, int] = {}
        """Grant -> number of its GPUs."""
        self.outdated = False
        """Whether containers were adopted that the supply does not know yet."""
        self.shrunk: dict[str, str] = {}
        """Grant -> its app, for grants that lost some GPUs and that the supply does not know about yet."""

    def copy(self) -> Groups:
        """An independent copy."""
        other = Groups()
        other.gpus, other.outdated, other.shrunk = dict(self.gpus), self.outdated, dict(self.shrunk)
        return other

    def note(self, fact: Fact, before: Lease | None, coming: Reservation | None, supply: Supply) -> None:
        """Counts a fact about a GPU; `before` and `coming` are its lease and reservation before the fact."""
        lost: Lease | Reservation | None = None
        if isinstance(fact, LeaseGranted):
            self.gpus[fact.grant_id] = self.gpus.get(fact.grant_id, 0) + 1
        elif isinstance(fact, NextDropped) and coming is not None:
            lost = coming
        elif isinstance(fact, LeaseRevoking | LeaseEnded) and before is not None and before.state != REVOKING:
            lost = before
        if lost is not None:
            self._lost(lost, supply)

    def _lost(self, lost: Lease | Reservation, supply: Supply) -> None:
        group = lost.grant_id
        self.gpus[group] -= 1
        if not self.gpus[group]:
            del self.gpus[group]
            self.shrunk.pop(group, None)
            supply.release(group)
        elif not supply.whole:
            self.shrunk[group] = lost.app_id

    def tell_shrunk(self, d: Durable, supply: Supply) -> tuple[str, ...]:
        """Tells the supply which GPUs are left in groups that lost some; returns those that borrow from now on."""
        shrunk, self.shrunk = self.shrunk, {}
        found = []
        for group, app_id in shrunk.items():
            gang = [x for x in d.claims_of(app_id) if x.grant_id == group and not _revoking(x)]
            if not supply.shrink(_group(group, d.apps[app_id].vc, gang)):
                found.append(group)
        return tuple(found)

    def adopted(self) -> None:
        """A container was adopted that the supply does not know."""
        self.outdated = True

    def tell_all(self, d: Durable, supply: Supply) -> tuple[str, ...]:
        """Gives the supply all groups; returns those that borrow from now on."""
        self.outdated, self.shrunk = False, {}
        held = _held(d)
        self.gpus = {group: len(gang) for group, gang in held.items()}
        return supply.recover(_group(group, d.apps[gang[0].app_id].vc, gang) for group, gang in held.items())

    def is_whole(self, gang: Sequence[Lease]) -> bool:
        """Whether these leases are one complete group."""
        return len({x.grant_id for x in gang}) == 1 and self.gpus.get(gang[0].grant_id) == len(gang)

    def validate(self, d: Durable, supply: Supply) -> Iterator[tuple[str | None, str]]:
        """Yields (app or None, what is wrong) if the cells' groups do not match the leases."""
        if self.outdated:
            return
        held = _held(d)
        counts = {group: len(gang) for group, gang in held.items()}
        if counts != self.gpus:
            yield None, f"the groups have {counts}, the cells know {self.gpus}"
        told = supply.guarantees()
        for group in told.keys() - held.keys():
            yield None, f"the cells have the group {group}, which holds no GPUs"
        for group, gang in held.items():
            if not supply.whole and {x.guaranteed for x in gang} != {told.get(group, False)}:
                owns = "guaranteed" if told.get(group) else "borrowed"
                yield gang[0].app_id, f"the cells say that {group} is {owns}, its leases say otherwise"


def _group(group: str, vc: str, gang: Claims) -> GroupGpus:
    return GroupGpus(group, vc, gang[0].guaranteed, tuple(sorted(x.gpu for x in gang)))


def _revoking(x: Lease | Reservation) -> bool:
    return isinstance(x, Lease) and x.state == REVOKING


def _held(d: Durable) -> Mapping[str, Claims]:
    held: dict[str, list[Lease | Reservation]] = {}
    for x in d.claims():
        if not _revoking(x):
            held.setdefault(x.grant_id, []).append(x)
    return held
