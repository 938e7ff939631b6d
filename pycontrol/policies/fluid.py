"""The ideal that the default policy follows: hierarchical processor sharing of a cluster that splits freely.

Queues share the GPUs by weight, the users of a queue equally (or by weight), and the apps of a user equally. None gets
more than it can use; the others share what it leaves (max-min at each level). Each app's declared work is served at
this rate; the time at which its work is done is its virtual finish time. On one machine with work that splits freely,
serving jobs in the order of these times finishes none of them later than the ideal does (Friedman and Henderson,
Fairness and efficiency in web server protocols, SIGMETRICS '03; with weights and wrong sizes: Dell'Amico, Carra and
Michiardi, PSBS: Practical Size-Based Scheduling, IEEE Transactions on Computers 2016).

An app that has ended stays in the ideal until the service that it really attained is served there too, before its
user's other apps. A user with several apps in sequence is therefore treated like a user with one app of the same work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter
from typing import Any

from pycontrol.model.value import value
from pycontrol.policies.hierarchy import Hierarchy, VirtualApp, Weights

EPS = 1e-9
ARRIVALS_MAX = 64
"""Most times at which arrivals since the last round are joined; more arrivals are joined in groups of neighbours."""


class Kept(dict[str, list[Any]]):
    """The apps of an ideal as plain values, with the ideal, so that the next round need not read them."""

    fluid: Fluid | None = None

    def __reduce__(self) -> tuple[type[dict[str, list[Any]]], tuple[dict[str, list[Any]]]]:
        return dict, (dict(self),)  # another process reads them


@value
class Fluid:
    """The state of the ideal at `at_s`. Immutable; rates are constant until an app arrives or is done."""

    at_s: float
    apps: Mapping[str, VirtualApp]
    served_gpu_s: Mapping[str, float]
    """What each app with work left was served. The others were served all that they need."""
    _hierarchy: Hierarchy | None = field(default=None, compare=False, repr=False)
    """That of the apps with work left, if it is known. Ideals share it, so it is copied before it is changed."""

    @classmethod
    def from_json(cls, memory: Mapping[str, Any]) -> Fluid | None:
        """The ideal in `Plan.memory`; None if the memory has another form."""
        if not {"at_s", "apps"} <= memory.keys():
            return None
        known = memory["apps"]
        if isinstance(known, Kept) and known.fluid is not None:
            return known.fluid
        apps, served = dict[str, VirtualApp](), dict[str, float]()
        for app_id, (queue, user, declared, width, need, served_gpu_s, done_s, gone) in known.items():
            apps[app_id] = VirtualApp(queue, user, declared, width, need, done_s, gone)
            if need - served_gpu_s > EPS:
                served[app_id] = served_gpu_s
        return cls(float(memory["at_s"]), apps, served)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `Plan.memory`."""
        served = self.served_gpu_s
        apps = Kept(
            (a, [e.queue, e.user, e.declared_gpu_s, e.width_gpus, e.need_gpu_s, served.get(a, e.need_gpu_s), e.done_s,
                 e.gone])
            for a, e in self.apps.items()
        )  # fmt: skip
        apps.fluid = self
        return {"at_s": self.at_s, "apps": apps}

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
