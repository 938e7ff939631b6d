"""Fits learning curves and forecasts from them: which jobs can still be the best, and when a target is met at latest.

For performance-curve stopping (Themis, section 4.3.2; HyperDrive, Rasley et al., Middleware 2017). A curve is
y(n) = a + b phi(n) with b >= 0, for a value that falls during training (a loss, or minus an accuracy); phi is from a
small set of families and falls to 0. For a given shape, a and b follow by least squares, so only the shape is searched:
on a grid, then with scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pycontrol.model.value import value

Floats = NDArray[np.float64]
Point = TypeVar("Point", bound=Sequence[float])

POINTS_MAX = 60
POINTS_LEAST = 6
"""The least number of observations for a forecast."""
PLAUSIBLE = 1.5
"""A curve is implausible if its residuals exceed those of the best fit by this factor."""
MARGIN = 2.0
"""How much better than its curve a value may be, in units of its RMSE."""


@value
class Family:
    """phi(n, shape), its inverse, and the grid of shapes tried first (shapes are logarithms)."""

    phi: Callable[[Floats, Floats], Floats]
    inverse: Callable[[float, Sequence[float]], float]
    grid: Floats


def _grid(*axes: tuple[float, float, int]) -> Floats:
    points = np.meshgrid(*(np.linspace(math.log(low), math.log(high), k) for low, high, k in axes))
    return np.stack([p.ravel() for p in points], axis=-1)


# Steps are in units of the last one seen: phi takes n in (0, inf), and 1 is now. shape[..., i] has one number per row.
FAMILIES: dict[str, Family] = {
    "power": Family(
        lambda n, s: np.maximum(n, 1e-6) ** -np.exp(s[..., :1]),
        lambda phi, s: float(phi ** (-1 / math.exp(s[0]))),
        _grid((0.05, 4.0, 40)),
    ),
    "exponential": Family(
        lambda n, s: np.exp(-n * np.exp(s[..., :1])),
        lambda phi, s: -math.log(phi) / math.exp(s[0]),
        _grid((0.1, 60.0, 40)),
    ),
    "log_power": Family(
        lambda n, s: 1 / (1 + (n / np.exp(s[..., 1:2])) ** np.exp(s[..., :1])),
        lambda phi, s: math.exp(s[1]) * float((1 / phi - 1) ** (1 / math.exp(s[0]))),
        _grid((0.3, 6.0, 12), (0.02, 5.0, 12)),
    ),
}


@value
class Curve:
    """A fitted curve; `unit_steps`: the last step of the fit, `rmse`: root mean square of the residuals."""

    family: str
    shape: tuple[float, ...]
    a: float
    b: float
    unit_steps: float
    rmse: float

    def at(self, step: float) -> float:
        """The curve's value at a step."""
        phi = FAMILIES[self.family].phi(np.array([step / self.unit_steps]), np.array(self.shape))
        return self.a + self.b * float(phi[0])

    def reaches(self, value: float) -> float:
        """The first step at which the curve is at or below `value`; inf if it never is."""
        if self.at(0.0) <= value:
            return 0.0
        phi = (value - self.a) / self.b if self.b > 0 else 0.0
        if phi <= 0:
            return math.inf
        return max(0.0, FAMILIES[self.family].inverse(phi, self.shape) * self.unit_steps)


def fit(steps: Sequence[float], values: Sequence[float]) -> tuple[Curve, ...]:
    """The plausible curves through the observations, the best first; empty with too few observations.

    Observations with steps of 0 or less, or values that are not finite, are ignored.
    """
    seen = [(n, y) for n, y in zip(steps, values, strict=True) if n > 0 and math.isfinite(y)]
    if len(seen) < POINTS_LEAST:
        return ()
    n, y = _thinned(seen)
    unit = float(n[-1])
    curves = sorted((_fit(name, n / unit, y, unit) for name in FAMILIES), key=lambda c: c.rmse)
    most = PLAUSIBLE * curves[0].rmse + 1e-9 * float(np.ptp(y))
    return tuple(c for c in curves if c.rmse <= most)


def _thinned(seen: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    """At most POINTS_MAX points: medians of groups of neighbours, which reduce noise and discard outliers.

    Groups have an odd size, so that without noise both medians come from the same observation.
    """
    ordered, size = np.array(sorted(seen)), math.ceil(len(seen) / POINTS_MAX) // 2 * 2 + 1
    middle = np.array([np.median(ordered[k : k + size], axis=0) for k in range(0, len(ordered), size)])
    return middle[:, 0], middle[:, 1]


def _fit(name: str, n: Floats, y: Floats, unit: float) -> Curve:
    from scipy.optimize import minimize  # here, because it takes a second to load, which most commands do not need

    family = FAMILIES[name]
    grid = family.grid

    def loss(shape: Floats) -> float:
        inside = np.clip(shape, grid.min(axis=0), grid.max(axis=0))
        return float(_project(family.phi(n, inside[None, :]), y)[2][0]) + float(((shape - inside) ** 2).sum())

    start = grid[int(np.argmin(_project(family.phi(n, grid), y)[2]))]
    best = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 60, "xatol": 1e-3, "fatol": 1e-12})
    shape = np.clip(best.x, grid.min(axis=0), grid.max(axis=0))
    a, b, sse = _project(family.phi(n, shape[None, :]), y)
    free = max(1, len(n) - 2 - shape.size)
    return Curve(name, tuple(map(float, shape)), float(a[0]), float(b[0]), unit, math.sqrt(float(sse[0]) / free))


def _project(phi: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """(a, b, squared residuals) of y = a + b phi by least squares with b >= 0, for each row of phi."""
    mean = phi.mean(axis=1, keepdims=True)
    spread = ((phi - mean) ** 2).sum(axis=1)
    b = np.maximum(0.0, ((phi - mean) * (y - y.mean())).sum(axis=1) / np.maximum(spread, 1e-30))
    a = y.mean() - b * mean[:, 0]
    return a, b, ((a[:, None] + b[:, None] * phi - y) ** 2).sum(axis=1)


def add(points: list[Point], point: Point, most: int, newest: int = 1) -> None:
    """Add a later (step, value); of more than `most`, keep the first, the `newest`, and between them even steps."""
    points.append(point)
    if len(points) > newest + 2:
        first, last, at = points[0][0], points[-1][0], -1 - newest
        if points[at][0] - points[at - 1][0] < min(points[1][0] - first, 2 * (last - first) / most):
            del points[at]
    if len(points) > most:
        del points[1:-newest:2]


def best_possible(curves: Sequence[Curve], step: float) -> float:
    """The lowest value that any plausible curve allows at a step; -inf without curves."""
    return min((c.at(step) - MARGIN * c.rmse for c in curves), default=-math.inf)


def longest_run(curves: Sequence[Curve], target: float | None, last_step: float) -> float:
    """The latest step at which the job ends by any of the curves: at its target, or at its last step."""
    if target is None or not curves:
        return last_step
    return min(last_step, max(c.reaches(target) for c in curves))
