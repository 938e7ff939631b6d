"""The ideal step by step, without virtual time: the reference for `pycontrol.policies.fluid`.

Each step reckons what each app was served, and each division of a user's GPUs goes through all of its apps.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from pycontrol.model.value import value
from pycontrol.policies.fluid import ARRIVALS_MAX, EPS
from pycontrol.policies.hierarchy import VirtualApp, Weights, max_min


@dataclass(slots=True)
class _Queue:
    """The users of a queue who have apps."""

    users: list[str]
    """Sorted."""
    widths: list[int]
    """GPUs that each of the users can use at the same time, at most all."""
    apps: dict[str, Mapping[str, VirtualApp]]
    """User -> its apps in the order in which they came."""
    gpus: float | None = None
    """GPUs that it divided last; None: its users or their apps changed since."""

    def copy(self) -> _Queue:
        """An independent copy."""
        return _Queue(list(self.users), list(self.widths), dict(self.apps), self.gpus)


class Hierarchy:
    """The apps that share the GPUs, and their rates. As apps come and go, only what changes is calculated again."""

    def __init__(self, active: Mapping[str, VirtualApp], weights: Weights) -> None:
        self.weights = weights
        self._rates: dict[str, float] = {}
        self._queues: dict[str, _Queue] = {}
        apps: dict[str, dict[str, dict[str, VirtualApp]]] = {}
        for app_id, app in active.items():
            apps.setdefault(app.queue, {}).setdefault(app.user, {})[app_id] = app
        for name, of_user in apps.items():
            users = sorted(of_user)
            self._queues[name] = _Queue(users, [self._width(of_user[u]) for u in users], dict(of_user))

    def copy(self) -> Hierarchy:
        """An independent copy."""
        other = Hierarchy({}, self.weights)
        other._rates = dict(self._rates)
        other._queues = {name: queue.copy() for name, queue in self._queues.items()}
        return other

    def put(self, app_id: str, app: VirtualApp) -> None:
        """Adds an app, as the newest of its user's, or replaces it."""
        queue = self._queues.get(app.queue) or self._queues.setdefault(app.queue, _Queue([], [], {}))
        self._set(queue, app.user, {**queue.apps.get(app.user, {}), app_id: app})

    def remove(self, app_id: str, app: VirtualApp) -> None:
        """Removes an app that is here."""
        queue = self._queues[app.queue]
        self._set(queue, app.user, {a: e for a, e in queue.apps[app.user].items() if a != app_id})
        if not queue.users:
            del self._queues[app.queue]
        self._rates.pop(app_id, None)

    def users(self) -> Iterator[Mapping[str, VirtualApp]]:
        """The apps of each user of each queue, in the order in which they came."""
        return (apps for queue in self._queues.values() for apps in queue.apps.values())

    def rates(self) -> Mapping[str, float]:
        """App -> its rate in GPUs: max-min among queues, then users, then apps; each at most its width."""
        most, gpus = self.weights.most_gpus, self.weights.gpus
        names = sorted(self._queues)
        caps = [min(most.get(q, gpus), sum(self._queues[q].widths)) for q in names]
        shares = max_min(gpus, [self.weights.queues.get(q, 1.0) for q in names], caps)
        for name, share in zip(names, shares, strict=True):
            queue = self._queues[name]
            if queue.gpus != share:
                self._divide(queue, share)
                queue.gpus = share  # not before: another thread may read the same ideal
        return self._rates

    def _width(self, apps: Mapping[str, VirtualApp]) -> int:
        return min(self.weights.gpus, sum([e.width_gpus for e in apps.values()]))

    def _set(self, queue: _Queue, user: str, apps: Mapping[str, VirtualApp]) -> None:
        """Replaces a user's apps."""
        queue.gpus = None
        at = bisect_left(queue.users, user)
        if user in queue.apps:
            del queue.users[at], queue.widths[at], queue.apps[user]
        if apps:
            queue.users.insert(at, user)
            queue.widths.insert(at, self._width(apps))
            queue.apps[user] = apps

    def _divide(self, queue: _Queue, gpus: float) -> None:
        """Divides a queue's GPUs among its users and their apps."""
        weights, shares = self.weights.users, list[float](queue.widths)
        if weights or sum(queue.widths) > gpus:
            shares = max_min(gpus, [weights.get(u, 1.0) for u in queue.users], queue.widths)
        for user, share in zip(queue.users, shares, strict=True):
            apps = queue.apps[user]
            if len(apps) > 1:
                self._divide_among(apps, share)
            else:
                for app_id, app in apps.items():
                    self._rates[app_id] = min(app.width_gpus, share)

    def _divide_among(self, apps: Mapping[str, VirtualApp], gpus: float) -> None:
        """Divides a user's GPUs among its apps: ended apps first."""
        for gone in (True, False):
            some = [a for a, e in apps.items() if e.gone is gone]
            shares = max_min(gpus, [1.0] * len(some), [apps[a].width_gpus for a in some])
            self._rates.update(zip(some, shares, strict=True))
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
