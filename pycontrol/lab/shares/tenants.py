"""Tenants with several job types (OEF, section 4.2.4), and how long the placer lets an app wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pycontrol.shares.problem import Matrix, ShareError, ShareProblem, Vector


@dataclass(frozen=True)
class Tenancy:
    """Tenants with several job types: one virtual user per job type, with equal parts of the tenant's weight (OEF,
    section 4.2.4)."""

    problem: ShareProblem
    tenant: npt.NDArray[np.intp]
    """(n,): the tenant of each virtual user."""

    @classmethod
    def of(
        cls,
        vectors: Sequence[Sequence[Sequence[float]]],
        devices: Sequence[float] | Vector,
        weights: Sequence[float] | None = None,
    ) -> Tenancy:
        """The problem of virtual users. `vectors`: for each tenant, the speedup vectors of its job types.

        Raises ShareError.
        """
        for i, own in enumerate(vectors):
            if not own:
                raise ShareError(f"vectors[{i}]: has no job type")
        tenant = np.repeat(np.arange(len(vectors)), [len(v) for v in vectors])
        own_weights = np.ones(len(vectors)) if weights is None else np.asarray(weights, dtype=np.float64)
        if len(own_weights) != len(vectors):
            raise ShareError(f"weights: {len(own_weights)} tenants, but vectors has {len(vectors)}")
        parts = own_weights[tenant] / np.bincount(tenant)[tenant]
        return cls(ShareProblem.of([w for own in vectors for w in own], devices, parts), tenant)

    def by_tenant(self, x: Matrix) -> Matrix:
        """(tenants, k): the sum of the shares of each tenant's virtual users."""
        total = np.zeros((int(self.tenant.max()) + 1, x.shape[1]))
        np.add.at(total, self.tenant, x)
        return total


def wait_bound_rounds(
    patience: float, largest: int, share: float, apps_of_user: int, apps: int, stint: float = 1.0
) -> float:
    """Rounds after which every app has run, if its user's shares add up to `share` > 0 devices in each round, jobs
    have at most `largest` devices, all devices are on offer and some type has room for the job.

    After `patience` the user saves. Its debt is at most `stint` x `largest`, so each of its older apps, and then this
    one, waits at most ((stint + 1) largest + 1) / share rounds for the deviation. Of the older jobs that are ready, at
    least one runs in each round, and no older ones join them.
    """
    return patience + apps_of_user * math.ceil(((stint + 1) * largest + 1) / share) + apps
