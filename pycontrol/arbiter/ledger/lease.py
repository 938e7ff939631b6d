"""Leases and reservations as immutable values, how facts change them, and the table of all of them.

`TRANSITIONS` has the states of a lease and the facts that change them; docs/architecture.md draws it. `LeaseTable` is
the fold of the facts about leases; `Durable` and the readers of journals (`pycontrol.runtime.spans`) share it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pycontrol.arbiter.ledger.facts import (
    Fact,
    Gpus,
    LeaseBorrowed,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseIdle,
    LeaseOwned,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
    OfLease,
    dump_gpus,
    load_gpus,
)
from pycontrol.model.grouping import Tables
from pycontrol.model.reasons import EndReason, end_reason
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


class LeaseState(enum.StrEnum):
    """The states of a lease."""

    GRANTED = "granted"
    """It has no container yet, or no longer."""
    ACTIVE = "active"
    """Its container was launched."""
    REVOKING = "revoking"
    """It was lost in a round or revoked: its container must end by `end_s`."""


GRANTED, ACTIVE, REVOKING = LeaseState.GRANTED, LeaseState.ACTIVE, LeaseState.REVOKING

TRANSITIONS: Mapping[tuple[LeaseState | None, type[Any]], LeaseState | None] = {
    (None, LeaseGranted): GRANTED,
    (GRANTED, LeaseStarted): ACTIVE,
    (GRANTED, LeaseExtended): GRANTED,
    (GRANTED, LeaseIdle): GRANTED,
    (GRANTED, LeaseRevoking): REVOKING,
    (GRANTED, LeaseEnded): None,
    (ACTIVE, LeaseStarted): ACTIVE,
    (ACTIVE, LeaseExtended): ACTIVE,
    (ACTIVE, LeaseIdle): GRANTED,
    (ACTIVE, LeaseRevoking): REVOKING,
    (ACTIVE, LeaseEnded): None,
    (REVOKING, LeaseStarted): REVOKING,
    (REVOKING, LeaseExtended): REVOKING,
    (REVOKING, LeaseIdle): REVOKING,
    (REVOKING, LeaseRevoking): REVOKING,
    (REVOKING, LeaseEnded): None,
}
"""(state, fact) -> the next state; None: there is no lease. When a lease ends, the GPU's reservation becomes a GRANTED
lease. `LeaseBorrowed` and `LeaseOwned` do not change the state.
"""


@value
class Lease:
    """GPUs of one grant leased to one app, with one state and one end. Times are Unix seconds.

    It begins with all GPUs of its gang that are free. GPUs whose ways part (one is lost, or a container on one of
    several machines ends earlier) become a lease of their own of the same grant.
    """

    gpus: tuple[Gpu, ...]
    """Sorted."""
    app_id: str
    grant_id: str
    granted_s: float
    end_s: float
    state: LeaseState = GRANTED
    container_id: str = ""
    unused_since_s: float | None = None
    """Since when no container uses it; the lease lapses after the grant timeout."""
    job_id: str = ""
    gang: str = ""
    """The name of its gang, if that is not its grant's; gangs are renewed and revoked whole."""
    started_s: float | None = None
    """When its present container was launched."""
    slowdown: float = 1.0
    """S of its gang's locality, by the prior."""
    speed: float = 1.0
    """The GPUs of the reference type for which each of its GPUs counts in budgets."""
    gpu_type: str = ""
    used: bool = False
    """Whether it ever had a container; a second one does not prolong the lease."""
    first_container: str = ""
    guaranteed: bool = True
    """Whether it is within its virtual cluster's cells; a borrowed GPU is revoked when its owner needs it."""
    reason: str = ""
    """Why it is being revoked."""
    cause: EndReason = EndReason.UNKNOWN

    @property
    def lease_id(self) -> str:
        """GRANT@GPU with its first GPU, unique to this lease."""
        return f"{self.grant_id}@{self.gpus[0]}"

    def run_s(self, now_s: float) -> float:
        """Seconds in the present container."""
        return 0.0 if self.started_s is None else max(0.0, now_s - self.started_s)

    @property
    def running(self) -> float:
        """GPUs of the reference type that its container uses."""
        return 0.0 if self.started_s is None else len(self.gpus) * self.speed

    def attained_gpu_s(self, now_s: float) -> float:
        """GPU-seconds in the present container."""
        return len(self.gpus) * self.run_s(now_s)

    def slowed_gpu_s(self, now_s: float) -> float:
        """The part of `attained_gpu_s` lost to its slow placement."""
        return self.attained_gpu_s(now_s) * (1 - 1 / self.slowdown)


@value
class Reservation:
    """A lease that begins, GPU by GPU, when the present ones, which are being revoked, end."""

    gpus: tuple[Gpu, ...]
    """Sorted."""
    app_id: str
    grant_id: str
    granted_s: float
    """When it is expected to begin."""
    end_s: float
    """When it would end if it began then; the lease is as long if it begins earlier or later."""
    gang: str = ""
    guaranteed: bool = True

    @property
    def lease_id(self) -> str:
        """The id of the lease that it becomes."""
        return f"{self.grant_id}@{self.gpus[0]}"

    def begun(self, now_s: float) -> Lease:
        """The lease that it becomes when it begins at `now_s`."""
        end_s = now_s + (self.end_s - self.granted_s)
        lease = Lease(self.gpus, self.app_id, self.grant_id, now_s, end_s, unused_since_s=now_s)
        return dataclasses.replace(lease, gang=self.gang, guaranteed=self.guaranteed)


Claim = Lease | Reservation
"""What an app has of a GPU."""


def is_revoking(x: Claim) -> bool:
    """Whether it is a lease that is being revoked."""
    return isinstance(x, Lease) and x.state == REVOKING


def gpus_in(claims: Iterable[Claim]) -> list[Gpu]:
    """The GPUs of these leases and reservations."""
    return [gpu for x in claims for gpu in x.gpus]


def _state(lease: Lease, fact: type[Any]) -> LeaseState:
    state = TRANSITIONS[lease.state, fact]
    assert state is not None
    return state


def after(lease: Lease, f: Fact) -> Lease:
    """The lease after a fact that does not end it; raises ValueError for other facts."""
    match f:
        case LeaseExtended():
            return dataclasses.replace(lease, end_s=f.end_s)
        case LeaseStarted():
            return dataclasses.replace(
                lease, state=_state(lease, LeaseStarted), container_id=f.container_id, job_id=f.job_id,
                unused_since_s=None, first_container=lease.first_container if lease.used else f.container_id,
                end_s=f.end_s, started_s=f.at_s, slowdown=f.slowdown, speed=f.speed, gpu_type=f.gpu_type,
                used=True,
            )  # fmt: skip
        case LeaseRevoking():
            return dataclasses.replace(
                lease, state=_state(lease, LeaseRevoking), end_s=f.end_s, reason=f.reason, cause=f.cause
            )
        case LeaseIdle():
            idle = dataclasses.replace(lease, state=_state(lease, LeaseIdle), container_id="", job_id="")
            return dataclasses.replace(idle, unused_since_s=f.at_s, started_s=None)
        case LeaseBorrowed():
            return dataclasses.replace(lease, guaranteed=False)
        case LeaseOwned():
            return dataclasses.replace(lease, guaranteed=True)
    raise ValueError(f"{type(f).__name__} leaves no lease of {lease.lease_id}")


_FIELDS = tuple(f.name for f in dataclasses.fields(Lease))


# ---- JSON form; a reservation is written as the lease that it becomes


def dump_lease(lease: Lease) -> dict[str, Any]:
    """A lease as JSON values."""
    return {name: getattr(lease, name) for name in _FIELDS} | {"gpus": dump_gpus(lease.gpus)}


def dump_reservation(x: Reservation) -> dict[str, Any]:
    """A reservation as JSON values."""
    return dump_lease(dataclasses.replace(x.begun(x.granted_s), end_s=x.end_s))


def load_lease(data: Mapping[str, Any]) -> Lease:
    """The inverse of dump_lease(); before version 3 of the journal, leases had one GPU, and in 0.1 no causes."""
    values = dict(data)
    values["gpus"] = load_gpus([values.pop("gpu")] if "gpu" in values else values["gpus"])
    state, cause = LeaseState(values["state"]), end_reason(values.get("cause", ""))
    return Lease(**{**values, "state": state, "cause": cause})


def load_reservation(data: Mapping[str, Any]) -> Reservation:
    """The inverse of dump_reservation()."""
    x = load_lease(data)
    return Reservation(x.gpus, x.app_id, x.grant_id, x.granted_s, x.end_s, x.gang, x.guaranteed)


def grant_name(round_id: str, k: int) -> str:
    """The id of a round's k-th grant."""
    return f"{round_id}.{k}"


def round_of(grant_id: str) -> str:
    """The id of the round of a grant; the inverse of grant_name()."""
    return grant_id.rpartition(".")[0]


T = TypeVar("T", Lease, Reservation)


@value
class Step:
    """The effect of one fact: the leases with the GPUs that it names, before it and after it."""

    before: tuple[Lease, ...] = ()
    after: tuple[Lease, ...] = ()
    rest: tuple[Lease, ...] = ()
    """Leases that keep only the GPUs that the fact does not name."""
    reservations: tuple[Reservation, ...] = ()
    """The reservations that were made or cancelled, or that became leases."""

    @property
    def all(self) -> list[Claim]:
        """All leases and reservations that it changed."""
        return [*self.before, *self.after, *self.reservations]


class Claims(dict[Gpu, T], Generic[T]):
    """GPU -> its lease, or its reservation; each is there once for each of its GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self._by_app: Tables[str, Gpu, T] = Tables()

    def copied(self) -> Claims[T]:
        """An independent copy."""
        other = Claims[T]()
        other.update(self)
        other._by_app = self._by_app.copy()
        return other

    @property
    def by_app(self) -> Mapping[str, Mapping[Gpu, T]]:
        """App -> first GPU -> lease."""
        return self._by_app.by_key

    def each(self) -> Iterator[T]:
        """Each lease once."""
        return (x for gpu, x in self.items() if x.gpus[0] == gpu)

    def of(self, app_id: str) -> list[T]:
        """Those of one app, sorted by their first GPUs."""
        mine = self._by_app.at(app_id)
        return [mine[gpu] for gpu in sorted(mine)] if mine else []

    def put(self, x: T) -> None:
        """Adds a lease, or replaces that of the same GPUs."""
        for gpu in x.gpus:
            self[gpu] = x
        self._by_app.put(x.app_id, x.gpus[0], x)

    def drop(self, x: T) -> None:
        """Removes a lease."""
        for gpu in x.gpus:
            del self[gpu]
        self._by_app.drop(x.app_id, x.gpus[0])

    def parts(self, gpus: Iterable[Gpu]) -> list[T]:
        """The leases of these GPUs, each with those of them that it has."""
        gpus = tuple(gpus)
        whole = self.get(gpus[0]) if gpus else None
        if whole is not None and whole.gpus == gpus:
            return [whole]
        found: dict[int, tuple[T, list[Gpu]]] = {}
        for gpu in gpus:
            x = self.get(gpu)
            if x is not None:
                found.setdefault(id(x), (x, []))[1].append(gpu)
        return [x if len(mine) == len(x.gpus) else part(x, mine) for x, mine in found.values()]

    def parted(self, gpus: Iterable[Gpu]) -> tuple[list[T], list[T]]:
        """Makes the parts of leases with these GPUs leases of their own; returns them, and those with the others."""
        found, rest = self.parts(gpus), list[T]()
        for x in found:
            whole = self[x.gpus[0]]
            if x is not whole:
                self._by_app.drop(x.app_id, whole.gpus[0])
                others = part(whole, set(whole.gpus).difference(x.gpus))
                self.put(x)
                self.put(others)
                rest.append(others)
        return found, rest


def part(x: T, gpus: Iterable[Gpu]) -> T:
    """The lease with these of its GPUs only."""
    return dataclasses.replace(x, gpus=tuple(sorted(gpus)))


class LeaseTable:
    """Leases and reservations by GPU and by app."""

    def __init__(self) -> None:
        self.leases, self.reservations = Claims[Lease](), Claims[Reservation]()
        self.held: dict[str, int] = {}
        """App -> GPUs that it holds or has reserved, less those being revoked."""
        self.grants: dict[str, int] = {}
        """Grant -> its GPUs, counted in the same way."""
        self.borrowed: dict[str, int] = {}
        """App -> those of `held` that it borrows."""

    def copy(self) -> LeaseTable:
        """An independent copy."""
        other = LeaseTable()
        other.leases, other.reservations = self.leases.copied(), self.reservations.copied()
        other.held, other.grants, other.borrowed = dict(self.held), dict(self.grants), dict(self.borrowed)
        return other

    def being_revoked(self, gpus: Sequence[Gpu]) -> set[str]:
        """Grants that are being revoked, of the app with these GPUs: a gang on several machines is revoked in parts."""
        lease = self.leases.get(gpus[0])
        return {x.grant_id for x in self.leases.of(lease.app_id) if x.state == REVOKING} if lease is not None else set()

    def take(self, f: OfLease) -> Step:
        """Applies one fact; GPUs that it names and that have no lease change nothing, unless it grants them."""
        match f:
            case LeaseGranted():
                return self._granted(f)
            case LeaseEnded():
                return self._ended(f)
            case NextDropped():
                return Step(reservations=tuple(self.cancel(f.gpus)))
            case LeaseBorrowed() | LeaseOwned():
                return self._guarantee_changed(f)
        found, rest = self.leases.parted(f.gpus)
        now = [after(x, f) for x in found]
        for x, y in zip(found, now, strict=True):
            if y.state == REVOKING and x.state != REVOKING:
                self._hold(x, -1)
            self.leases.put(y)
        return Step(tuple(found), tuple(now), tuple(rest))

    def load(self, x: Claim) -> None:
        """Adds a lease or a reservation of GPUs that have none."""
        if isinstance(x, Reservation):
            self._hold(x, 1)
            self.reservations.put(x)
        else:
            if x.state != REVOKING:
                self._hold(x, 1)
            self.leases.put(x)

    def forget(self, gpus: Iterable[Gpu]) -> Step:
        """Removes the leases of these GPUs."""
        found, rest = self.leases.parted(gpus)
        for x in found:
            self.leases.drop(x)
            if x.state != REVOKING:
                self._hold(x, -1)
        return Step(before=tuple(found), rest=tuple(rest))

    def cancel(self, gpus: Iterable[Gpu]) -> list[Reservation]:
        """Removes the reservations of these GPUs and returns them."""
        found, _ = self.reservations.parted(gpus)
        for x in found:
            self.reservations.drop(x)
            self._hold(x, -1)
        return found

    def _granted(self, f: LeaseGranted) -> Step:
        now, about = tuple(sorted(set(f.gpus).difference(f.after))), (f.app_id, f.grant_id, f.at_s, f.end_s)
        step, begun, coming = Step(), list[Lease](), list[Reservation]()
        if f.after:
            self.cancel(f.after)
            coming = [Reservation(tuple(sorted(f.after)), *about, f.gang, f.guaranteed)]
        if now:
            step = self.forget(now)
            begun = [Lease(now, *about, unused_since_s=f.at_s, gang=f.gang, guaranteed=f.guaranteed)]
            here = set(now)
            self.leases.update((gpu, begun[0]) for gpu in f.gpus if gpu in here)  # in the order of their choice
        claims: list[Claim] = [*begun, *coming]
        for x in claims:
            self.load(x)
        return Step(step.before, tuple(begun), step.rest, tuple(coming))

    def _ended(self, f: LeaseEnded) -> Step:
        step = self.forget(f.gpus)
        coming, _ = self.reservations.parted(f.gpus)
        begun = [x.begun(f.at_s) for x in coming]
        for x, lease in zip(coming, begun, strict=True):
            self.reservations.drop(x)
            self.leases.put(lease)
        return Step(step.before, tuple(begun), step.rest, tuple(coming))

    def _guarantee_changed(self, f: LeaseBorrowed | LeaseOwned) -> Step:
        """Changes `guaranteed` of the leases, of the reservations, or of both."""
        before, rest = self.leases.parted(_of_grant(self.leases, f))
        now = [after(x, f) for x in before]
        for x in now:
            self.leases.put(x)
        coming, _ = self.reservations.parted(_of_grant(self.reservations, f))
        owned = isinstance(f, LeaseOwned)
        for reservation in coming:
            self.reservations.put(dataclasses.replace(reservation, guaranteed=owned))
        for claim in list[Claim]([*before, *coming]):
            if claim.guaranteed != owned and not is_revoking(claim):
                _count(self.borrowed, claim.app_id, -len(claim.gpus) if owned else len(claim.gpus))
        return Step(tuple(before), tuple(now), tuple(rest))

    def validate(self) -> Iterator[tuple[Gpu | str, str]]:
        """Yields (GPU, app or grant, what is wrong) where indexes and counts contradict the leases."""
        counted, claims_here = LeaseTable(), list[Claim]([*self.leases.each(), *self.reservations.each()])
        for x in claims_here:
            counted.load(x)
        for claims, right in ((self.leases, counted.leases), (self.reservations, counted.reservations)):
            for gpu in claims.keys() ^ right.keys():
                yield gpu, "its lease does not name it, or names it and is not there"
            for app_id in claims.by_app.keys() | right.by_app.keys():
                mine, theirs = claims.by_app.get(app_id, {}), right.by_app.get(app_id, {})
                for gpu in mine.keys() | theirs.keys():
                    if mine.get(gpu) is not theirs.get(gpu):
                        yield gpu, f"{app_id} does not have what the GPU says, or has more"
        for gpu, reservation in self.reservations.items():
            present = self.leases.get(gpu)
            if present is None or present.state != REVOKING:
                yield gpu, f"it is reserved for {reservation.app_id} and not being revoked"
        both = (self.held, counted.held), (self.grants, counted.grants), (self.borrowed, counted.borrowed)
        for counts, right_counts in both:
            for name in counts.keys() | right_counts.keys():
                if counts.get(name, 0) != right_counts.get(name, 0):
                    yield name, f"it holds {right_counts.get(name, 0)} GPUs, {counts.get(name, 0)} were counted"

    def _hold(self, x: Claim, sign: int) -> None:
        n = sign * len(x.gpus)
        _count(self.held, x.app_id, n)
        _count(self.grants, x.grant_id, n)
        if not x.guaranteed:
            _count(self.borrowed, x.app_id, n)


def _count(counts: dict[str, int], name: str, n: int) -> None:
    held = counts.get(name, 0) + n
    if held:
        counts[name] = held
    else:
        counts.pop(name, None)


def _of_grant(claims: Claims[T], f: LeaseBorrowed | LeaseOwned) -> Gpus:
    if not f.grant_id:
        return f.gpus
    return tuple(g for g in f.gpus if (x := claims.get(g)) is not None and x.grant_id == f.grant_id)
