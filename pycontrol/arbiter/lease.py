"""A lease of one GPU and a reservation of one, as immutable values; what each fact makes of them.

The states of a lease and the facts that change them are one table, `TRANSITIONS`; docs/architecture.md draws it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
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
)
from pycontrol.model.reasons import EndReason, end_reason
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


class LeaseState(enum.StrEnum):
    """The states of a lease that is in force."""

    GRANTED = "granted"
    """No container yet, or no longer."""
    ACTIVE = "active"
    """Its container was launched."""
    REVOKING = "revoking"
    """Lost in a round, or taken back: the container must be gone at `end_s`."""


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
"""(state, fact) -> the state after it; None: there is no lease. A reservation of the GPU is GRANTED when that ends.

`LeaseBorrowed` and `LeaseOwned` change no state.
"""


@value
class Lease:
    """One GPU leased to one app. Times are Unix seconds."""

    gpu: Gpu
    app_id: str
    grant_id: str
    granted_s: float
    end_s: float
    state: LeaseState = GRANTED
    container_id: str = ""
    unused_since_s: float | None = None
    """Since when no container uses it; the lease lapses after the grant time-out."""
    job_id: str = ""
    gang: str = ""
    """The gang of its award; gangs are renewed and revoked whole."""
    started_s: float | None = None
    """When its present container was launched."""
    slowdown: float = 1.0
    """S of its gang's place, by the prior."""
    used: bool = False
    """It had a container: a second one does not prolong it."""
    first_container: str = ""
    guaranteed: bool = True
    """Within its virtual cluster's cells; a borrowed GPU is given back when a tenant's guarantee needs it."""
    reason: str = ""
    """Why it is being revoked."""
    cause: EndReason = EndReason.UNKNOWN

    @property
    def lease_id(self) -> str:
        """The grant, and which of its GPUs this is."""
        return f"{self.grant_id}@{self.gpu}"

    def attained_gpu_s(self, now_s: float) -> float:
        """GPU-seconds in its present container."""
        return 0.0 if self.started_s is None else max(0.0, now_s - self.started_s)

    def slowed_gpu_s(self, now_s: float) -> float:
        """The part of them that its place cost."""
        return self.attained_gpu_s(now_s) * (1 - 1 / self.slowdown)


@value
class Reservation:
    """A lease that begins when the GPU's present one, which is being revoked, ends."""

    gpu: Gpu
    app_id: str
    grant_id: str
    granted_s: float
    """When it is expected to begin."""
    end_s: float
    """When it would end then; it is as long, whenever it begins."""
    gang: str = ""
    guaranteed: bool = True

    @property
    def lease_id(self) -> str:
        """The one of the lease that it becomes."""
        return f"{self.grant_id}@{self.gpu}"

    def begun(self, now_s: float) -> Lease:
        """The lease that it becomes."""
        end_s = now_s + (self.end_s - self.granted_s)
        return Lease(self.gpu, self.app_id, self.grant_id, now_s, end_s, unused_since_s=now_s, gang=self.gang,
                     guaranteed=self.guaranteed)  # fmt: skip


def granted(f: LeaseGranted) -> Lease:
    """The lease of a grant."""
    return Lease(f.gpu, f.app_id, f.grant_id, f.at_s, f.end_s, unused_since_s=f.at_s, gang=f.gang,
                 guaranteed=f.guaranteed)  # fmt: skip


def reserved(f: LeaseGranted) -> Reservation:
    """The reservation of a grant that begins later."""
    return Reservation(f.gpu, f.app_id, f.grant_id, f.at_s, f.end_s, f.gang, f.guaranteed)


def _state(lease: Lease, fact: type[Any]) -> LeaseState:
    state = TRANSITIONS[lease.state, fact]
    assert state is not None
    return state


def after(lease: Lease, f: Fact) -> Lease:
    """The lease after a fact that does not end it."""
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
    raise ValueError(f"{type(f).__name__} leaves no lease of {lease.gpu}")


# ---- as plain values; a reservation is written as the lease that it becomes, as journals always had it


def dump_lease(lease: Lease) -> dict[str, Any]:
    """JSON-able form."""
    return dataclasses.asdict(lease)


def dump_reservation(x: Reservation) -> dict[str, Any]:
    """JSON-able form."""
    return dump_lease(dataclasses.replace(x.begun(x.granted_s), end_s=x.end_s))


def load_lease(data: Mapping[str, Any]) -> Lease:
    """The inverse of dump_lease(); journals of 0.1 have no causes."""
    state, cause = LeaseState(data["state"]), end_reason(data.get("cause", ""))
    return Lease(**{**data, "gpu": Gpu(*data["gpu"]), "state": state, "cause": cause})


def load_reservation(data: Mapping[str, Any]) -> Reservation:
    """The inverse of dump_reservation()."""
    x = load_lease(data)
    return Reservation(x.gpu, x.app_id, x.grant_id, x.granted_s, x.end_s, x.gang, x.guaranteed)


def grant_name(round_id: str, k: int) -> str:
    """The id of a round's k-th grant."""
    return f"{round_id}.{k}"


def round_of(grant_id: str) -> str:
    """The inverse: the round of a grant."""
    return grant_id.rpartition(".")[0]
