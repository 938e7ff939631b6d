"""The ideal step by step, without virtual time: the reference for `pycontrol.policies.fluid`.

Each step reckons what each app was served, and each division of GPUs goes through all apps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter

from pycontrol.model.accounts import Account
from pycontrol.model.value import value
from pycontrol.policies.fluid import ARRIVALS_MAX, EPS
from pycontrol.policies.hierarchy import VirtualApp, Weights, max_min


class Hierarchy:
    """The apps that share the GPUs, and their rates, which are calculated again after each change."""

    def __init__(self, active: Mapping[str, VirtualApp], weights: Weights) -> None:
        self.weights, self.apps = weights, dict(active)
        self._rates: dict[str, float] | None = None

    def copy(self) -> Hierarchy:
        """An independent copy."""
        return Hierarchy(self.apps, self.weights)

    def put(self, app_id: str, app: VirtualApp) -> None:
        """Adds an app, as the newest of its user's, or replaces it."""
        self.apps[app_id], self._rates = app, None

    def remove(self, app_id: str, app: VirtualApp) -> None:
        """Removes an app that is here."""
        del self.apps[app_id]
        self._rates = None

    def users(self) -> Iterator[Mapping[str, VirtualApp]]:
        """The apps of each user of each account, in the order in which they came."""
        paths = dict.fromkeys(map(self.weights.path, self.apps.values()))
        return ({a: e for a, e in self.apps.items() if self.weights.path(e) == path} for path in paths)

    def rates(self) -> Mapping[str, float]:
        """App -> its rate in GPUs: max-min level by level; each at most its width, each account at most its limit."""
        if self._rates is None:
            self._rates = {}
            self._divide(self._rates, self.weights.root, 0, self.apps, self.weights.gpus)
        return self._rates

    def _below(self, depth: int, apps: Mapping[str, VirtualApp]) -> Mapping[str, Mapping[str, VirtualApp]]:
        """The apps by their account at this depth; empty below users."""
        found: dict[str, dict[str, VirtualApp]] = {}
        for app_id, app in apps.items():
            for name in self.weights.path(app)[depth : depth + 1]:
                found.setdefault(name, {})[app_id] = app
        return dict(sorted(found.items()))

    def _width(self, account: Account, depth: int, apps: Mapping[str, VirtualApp]) -> float:
        below = self._below(depth, apps)
        own = sum(self._width(account.at(n), depth + 1, x) for n, x in below.items())
        limit = account.limits.gpus
        return min(self.weights.gpus if limit is None else limit, own or sum(e.width_gpus for e in apps.values()))

    def _divide(
        self, rates: dict[str, float], account: Account, depth: int, apps: Mapping[str, VirtualApp], gpus: float
    ) -> None:
        below = self._below(depth, apps)
        at = {n: account.at(n) for n in below}
        widths = [self._width(at[n], depth + 1, x) for n, x in below.items()]
        for (name, own), share in zip(
            below.items(), max_min(gpus, [x.weight for x in at.values()], widths), strict=True
        ):
            self._divide(rates, at[name], depth + 1, own, share)
        for gone in (True, False) if not below else ():  # a user's apps: ended ones first
            some = [a for a, e in apps.items() if e.gone is gone]
            shares = max_min(gpus, [1.0] * len(some), [apps[a].width_gpus for a in some])
            rates.update(zip(some, shares, strict=True))
            gpus -= sum(shares)


@value
class Fluid:
    """The state of the ideal at `at_s`. Immutable; rates are constant until an app arrives or is done."""

    at_s: float
    apps: Mapping[str, VirtualApp]
    served_gpu_s: Mapping[str, float]
    """What each app with work left was served. The others were served all that they need."""
    _hierarchy: Hierarchy | None = field(default=None, compare=False, repr=False)
    """That of the apps with work left, if it is known. Ideals share it, so it is copied before it is changed."""

    def rates(self, weights: Weights) -> Mapping[str, float]:
        """App -> its rate in GPUs, for apps with work left."""
        return self.hierarchy(weights).rates()

    def hierarchy(self, weights: Weights) -> Hierarchy:
        """That of the apps with work left; not to be changed."""
        known = self._hierarchy
        if known is not None and known.weights == weights:
            return known
        return _tree(self.apps, self.served_gpu_s, weights)

    def at(self, until_s: float, weights: Weights) -> Fluid:
        """The ideal at a later time if no app arrives."""
        tree = self.hierarchy(weights)
        if until_s <= self.at_s:
            return Fluid(until_s, self.apps, self.served_gpu_s, tree)
        now_s, apps = self.at_s, self.apps
        ids, served = list(self.served_gpu_s), list(self.served_gpu_s.values())
        needs = [apps[a].need_gpu_s for a in ids]
        while ids and until_s > now_s:
            rate = tree.rates()
            speeds = [rate[a] for a in ids]
            first_s = min(
                [(n - s) / x for n, s, x in zip(needs, served, speeds, strict=True) if x > 0], default=math.inf
            )
            step_s = min(first_s, until_s - now_s)
            now_s = until_s if step_s < first_s else now_s + step_s
            served = [s + step_s * x for s, x in zip(served, speeds, strict=True)]
            going = [n - s > EPS and n - s > EPS * n for n, s in zip(needs, served, strict=True)]
            if not all(going):
                done = [a for a, goes_on in zip(ids, going, strict=True) if not goes_on]
                tree = tree.copy()
                for a in done:
                    tree.remove(a, apps[a])
                apps = _done(apps, done, now_s)
                ids = list(itertools.compress(ids, going))
                needs, served = list(itertools.compress(needs, going)), list(itertools.compress(served, going))
        return Fluid(until_s, apps, dict(zip(ids, served, strict=True)), tree)

    def changed(self, changes: Mapping[str, VirtualApp], weights: Weights) -> Fluid:
        """The ideal with some of its apps replaced, without those that have ended and been served."""
        tree: Hierarchy | None = self.hierarchy(weights).copy()
        apps, served = dict(self.apps), dict(self.served_gpu_s)
        for a, e in changes.items():
            was_served = served.pop(a, None)
            so_far_gpu_s = self.apps[a].need_gpu_s if was_served is None else was_served
            goes_on = e.need_gpu_s - so_far_gpu_s > EPS
            if goes_on:
                served[a] = so_far_gpu_s
            if tree is not None and was_served is not None:
                tree.put(a, e) if goes_on else tree.remove(a, e)
            elif goes_on:
                tree = None  # its place among the apps of its user is not known
            if e.gone and not goes_on:
                del apps[a]
            else:
                apps[a] = e
        return Fluid(self.at_s, apps, served, tree or _tree(apps, served, weights))

    def joined_by(self, group: Sequence[tuple[float, str, VirtualApp]], weights: Weights) -> Fluid:
        """The ideal with new apps, (arrival, id, app); each is credited its present rate since its arrival."""
        tree, apps, served = self.hierarchy(weights).copy(), dict(self.apps), dict(self.served_gpu_s)
        for _, app_id, app in group:
            apps[app_id] = app
            if app.need_gpu_s > EPS:
                tree.put(app_id, app)
        rate = tree.rates() if group[0][0] < self.at_s else {}
        for came_s, app_id, app in group:
            credit_gpu_s = max(0.0, self.at_s - came_s) * rate.get(app_id, 0.0)
            if app.need_gpu_s - credit_gpu_s > EPS:
                served[app_id] = credit_gpu_s
            elif app.need_gpu_s > EPS:
                tree.remove(app_id, app)
        return Fluid(self.at_s, apps, served, tree)

    def finish_s(self, weights: Weights) -> dict[str, float]:
        """App -> its virtual finish time: the past one if it is done, else as if each user kept its present rate.

        The apps of a user share the user's rate equally, after its ended apps are served; when a smaller app is done,
        the others speed up.
        """
        served, now_s, tree = self.served_gpu_s, self.at_s, self.hierarchy(weights)
        found = {a: now_s if e.done_s is None else e.done_s for a, e in self.apps.items() if a not in served}
        rate = tree.rates()
        for members in tree.users():
            if len(members) == 1:  # as most often: the same result in a fifth of the time
                ((a, e),) = members.items()
                if not e.gone:
                    found[a] = now_s + ((e.need_gpu_s - served[a]) / rate[a] if rate[a] > 0 else math.inf)
                continue
            total, before = sum([rate[a] for a in members]), 0.0
            here: list[tuple[float, str, int]] = []
            for a, e in members.items():
                left_gpu_s = e.need_gpu_s - served[a]
                if e.gone:
                    before += left_gpu_s
                else:
                    here.append((left_gpu_s, a, e.width_gpus))
            here.sort(key=itemgetter(0))
            for k, (left_gpu_s, a, width_gpus) in zip(range(len(here), 0, -1), here, strict=True):
                served_s = (before + k * left_gpu_s) / total if total > 0 else math.inf
                found[a] = now_s + max(served_s, left_gpu_s / width_gpus)
                before += left_gpu_s
        return found


def _tree(apps: Mapping[str, VirtualApp], served_gpu_s: Container[str], weights: Weights) -> Hierarchy:
    """The hierarchy of the apps with work left: those of `served_gpu_s`."""
    return Hierarchy({a: e for a, e in apps.items() if a in served_gpu_s}, weights)


def _done(apps: Mapping[str, VirtualApp], done: Sequence[str], now_s: float) -> dict[str, VirtualApp]:
    """The apps after some of them were served all that they need; those that have ended leave."""
    left = dict(apps)
    for a in done:
        if apps[a].gone:
            del left[a]
        else:
            left[a] = replace(apps[a], done_s=now_s)
    return left


def joined(fluid: Fluid, newcomers: Sequence[tuple[float, str, VirtualApp]], weights: Weights) -> Fluid:
    """The ideal at the last arrival with new apps, (arrival, id, app): as a round at each arrival would make it.

    Apps that arrived before `at_s`, or just before another one of many (`ARRIVALS_MAX`), are credited their rate since.
    """
    late = [x for x in newcomers if x[0] < fluid.at_s]
    rest = sorted((x for x in newcomers if x[0] >= fluid.at_s), key=lambda found: found[:2])
    size = max(1, -(-len(rest) // ARRIVALS_MAX))
    for group in (late, *(rest[k : k + size] for k in range(0, len(rest), size))):
        if group:
            fluid = fluid.at(max(fluid.at_s, group[-1][0]), weights).joined_by(group, weights)
    return fluid
