"""The input of share schemes: users' speedup vectors, devices by type, weights and demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]


class ShareError(ValueError):
    """Invalid input, which the message names, or a failed computation of shares."""


@dataclass(frozen=True)
class ShareProblem:
    """n users and k GPU types."""

    speedups: Matrix
    """(n, k): w, the speed of a user's jobs on one device of a type; 0 if it cannot use the type."""
    devices: Vector
    """(k,): m, devices of each type; may be 0."""
    weights: Vector
    """(n,): pi > 0."""
    demands: Vector
    """(n,): devices that a user can use at the same time; inf: no limit. Of the schemes, only Gavel's use it."""
    left: Vector | None = None
    """(n,): work left > 0, in units of speedup x seconds; equal if None. For Gavel's finish times."""
    since_s: Vector | None = None
    """(n,): seconds since a user's first job was submitted; 0 if None. For Gavel's finish times."""

    @classmethod
    def of(
        cls,
        speedups: Sequence[Sequence[float]] | Matrix,
        devices: Sequence[float] | Vector,
        weights: Sequence[float] | Vector | None = None,
        demands: Sequence[float] | Vector | None = None,
        left: Sequence[float] | Vector | None = None,
        since_s: Sequence[float] | Vector | None = None,
    ) -> ShareProblem:
        """A validated problem; raises ShareError."""
        w, m = _array("W", speedups, 2), _array("m", devices, 1)
        n, k = w.shape
        if len(m) != k:
            raise ShareError(f"m: {len(m)} types, but W has {k}")
        pi = np.ones(n) if weights is None else _array("weights", weights, 1)
        if len(pi) != n:
            raise ShareError(f"weights: {len(pi)} users, but W has {n}")
        if not (pi > 0).all():
            raise ShareError(f"weights[{int(np.argmin(pi))}]: must be positive")
        cap = np.full(n, np.inf) if demands is None else np.asarray(demands, dtype=np.float64)
        if cap.shape != (n,) or not (cap >= 0).all():
            raise ShareError(f"demands: must be {n} numbers, none negative or NaN")
        todo = None if left is None else _array("left", left, 1)
        since = None if since_s is None else _array("since_s", since_s, 1)
        for name, values in (("left", todo), ("since_s", since)):
            if values is not None and len(values) != n:
                raise ShareError(f"{name}: {len(values)} users, but W has {n}")
        if todo is not None and not (todo > 0).all():
            raise ShareError(f"left[{int(np.argmin(todo))}]: must be positive")
        return cls(w, m, pi, cap, todo, since)

    @property
    def users(self) -> int:
        """n, the number of users."""
        return len(self.weights)

    @property
    def types(self) -> int:
        """k, the number of types."""
        return len(self.devices)

    def efficiency(self, x: Matrix) -> Vector:
        """(n,): w.x of each user."""
        return np.asarray((self.speedups * x).sum(axis=1))


def _array(name: str, values: Any, dimensions: int) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise ShareError(f"{name}: must be numbers, in rows of one length") from e
    if array.ndim != dimensions or array.size == 0:
        raise ShareError(f"{name}: must be a {'list' if dimensions == 1 else 'list of equal lists'}, and not empty")
    for what, bad in (("NaN or infinite", ~np.isfinite(array)), ("negative", array < 0)):
        if bad.any():
            where = "".join(f"[{i}]" for i in np.argwhere(bad)[0])
            raise ShareError(f"{name}{where}: is {what}")
    return array


class Scheme(Protocol):
    """A rule that divides devices among users."""

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices of each type for each user."""


@dataclass(frozen=True)
class Merged:
    """A smaller, equivalent problem: users with equal vectors merged into one with the sum of their weights (OEF,
    section 4.2.3, in reverse)."""

    problem: ShareProblem
    member: npt.NDArray[np.intp]
    """(n,): the row of `problem` for each user."""

    @classmethod
    def of(cls, problem: ShareProblem) -> Merged:
        """Merges users with exactly equal vectors."""
        rows, member = np.unique(problem.speedups, axis=0, return_inverse=True)
        member = member.reshape(-1)
        weights = np.bincount(member, problem.weights).astype(np.float64)
        demands = np.bincount(member, problem.demands).astype(np.float64)
        return cls(ShareProblem(rows, problem.devices, weights, demands), member)

    def proportional(self, x: Matrix, weights: Vector) -> Matrix:
        """(n, k): the shares x of merged rows divided among their members by weight."""
        return np.asarray(x[self.member] * (weights / self.problem.weights[self.member])[:, None])
