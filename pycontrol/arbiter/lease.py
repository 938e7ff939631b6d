"""Leases and reservations as immutable values, and how facts change them.

The table `TRANSITIONS` has the states of a lease and the facts that change them; docs/architecture.md draws it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from pycontrol.arbiter.facts import (
    Fact,
    LeaseBorrowed,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseIdle,
    LeaseOwned,
    LeaseRevoking,
    LeaseStarted,
    dump_gpus,
    load_gpus,
)
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
        return Lease(self.gpus, self.app_id, self.grant_id, now_s, end_s, unused_since_s=now_s, gang=self.gang,
                     guaranteed=self.guaranteed)  # fmt: skip


def granted(f: LeaseGranted, gpus: tuple[Gpu, ...]) -> Lease:
    """The lease of these of a grant's GPUs."""
    return Lease(gpus, f.app_id, f.grant_id, f.at_s, f.end_s, unused_since_s=f.at_s, gang=f.gang,
                 guaranteed=f.guaranteed)  # fmt: skip


def reserved(f: LeaseGranted) -> Reservation:
    """The reservation of the GPUs of a grant that are not available yet."""
    return Reservation(tuple(sorted(f.after)), f.app_id, f.grant_id, f.at_s, f.end_s, f.gang, f.guaranteed)


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
                end_s=f.end_s, started_s=f.at_s, slowdown=f.slowdown, used=True,
            )  # fmt: skip
        case LeaseRevoking():
            return dataclasses.replace(
                lease, state=_state(lease, LeaseRevoking), end_s=f.end_s, reason=f.reason, cause=f.cause
            )
        case LeaseIdle():
            return dataclasses.replace(
                lease, state=_state(lease, LeaseIdle), container_id="", job_id="", unused_since_s=f.at_s,
                started_s=None,
            )  # fmt: skip
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
