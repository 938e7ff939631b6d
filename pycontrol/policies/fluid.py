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
from collections.abc import Mapping, Sequence
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
    _hierarchy: Hierarchy | None = field(default=None, compare=False, repr=False)
    """That of the apps with work left, if it is known. Ideals share it, so it is copied before it is changed."""

    @classmethod
    def from_json(cls, memory: Mapping[str, Any]) -> Fluid | None:
        """The ideal in `Plan.memory`; None if the memory has another form."""
        if not {"at_s", "apps"} <= memory.keys():
            return None
        apps = memory["apps"]
        if isinstance(apps, Kept) and apps.fluid is not None:
            return apps.fluid
        return cls(float(memory["at_s"]), {a: VirtualApp(*e) for a, e in apps.items()})

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `Plan.memory`."""
        apps = Kept((a, e.to_json()) for a, e in self.apps.items())
        apps.fluid = self
        return {"at_s": self.at_s, "apps": apps}

    def active(self) -> dict[str, VirtualApp]:
        """The apps with work left."""
        return {a: e for a, e in self.apps.items() if e.need_gpu_s - e.served_gpu_s > EPS}

    def rates(self, weights: Weights) -> Mapping[str, float]:
        """App -> its rate in GPUs, for apps with work left."""
        return self.hierarchy(weights).rates()

    def hierarchy(self, weights: Weights) -> Hierarchy:
        """That of the apps with work left; not to be changed."""
        known = self._hierarchy
        return known if known is not None and known.weights == weights else Hierarchy(self.active(), weights)

    def at(self, until_s: float, weights: Weights) -> Fluid:
        """The ideal at a later time if no app arrives."""
        tree = self.hierarchy(weights)
        if until_s <= self.at_s:
            return Fluid(until_s, self.apps, tree)
        now_s, apps, active = self.at_s, dict(self.apps), list(self.active().items())
        needs, served = [e.need_gpu_s for _, e in active], [e.served_gpu_s for _, e in active]
        while active and until_s > now_s:
            rate = tree.rates()
            speeds = [rate[a] for a, _ in active]
            first_s = min(
                [(n - s) / x for n, s, x in zip(needs, served, speeds, strict=True) if x > 0], default=math.inf
            )
            step_s = min(first_s, until_s - now_s)
            now_s = until_s if step_s < first_s else now_s + step_s
            served = [s + step_s * x for s, x in zip(served, speeds, strict=True)]
            done = [n - s <= EPS or n - s <= EPS * n for n, s in zip(needs, served, strict=True)]
            if any(done):
                tree = tree.copy()
                for a, e in itertools.compress(active, done):
                    tree.remove(a, e)
                    if e.gone:
                        del apps[a]
                    else:
                        apps[a] = replace(e, served_gpu_s=e.need_gpu_s, done_s=now_s)
                going = [i for i, ended in enumerate(done) if not ended]
                active, needs, served = (
                    [active[i] for i in going],
                    [needs[i] for i in going],
                    [served[i] for i in going],
                )
        for (a, e), s in zip(active, served, strict=True):
            apps[a] = e.with_service(s)
        return Fluid(until_s, apps, tree)

    def changed(self, changes: Mapping[str, VirtualApp], weights: Weights) -> Fluid:
        """The ideal with some of its apps replaced, and without ended apps that have been served."""
        tree: Hierarchy | None = self.hierarchy(weights).copy()
        for a, e in changes.items():
            before, after = self.apps[a].left_gpu_s > EPS, e.left_gpu_s > EPS
            if tree is not None and before:
                tree.put(a, e) if after else tree.remove(a, e)
            elif after:
                tree = None  # its place among the apps of its user is not known
        apps = {a: e for a, e in {**self.apps, **changes}.items() if not e.gone or e.left_gpu_s > 0}
        return Fluid(self.at_s, apps, tree)

    def joined_by(self, group: Sequence[tuple[float, str, VirtualApp]], weights: Weights) -> Fluid:
        """The ideal with new apps, (arrival, id, app); each is credited its present rate since its arrival."""
        tree, apps = self.hierarchy(weights).copy(), dict(self.apps)
        for _, app_id, app in group:
            if app.need_gpu_s > EPS:
                tree.put(app_id, app)
        rate = tree.rates() if group[0][0] < self.at_s else {}
        for came_s, app_id, app in group:
            credit_gpu_s = max(0.0, self.at_s - came_s) * rate.get(app_id, 0.0)
            new = apps[app_id] = replace(app, served_gpu_s=min(app.need_gpu_s, credit_gpu_s))
            if app.need_gpu_s > EPS >= new.left_gpu_s:
                tree.remove(app_id, app)
        return Fluid(self.at_s, apps, tree)

    def finish_s(self, rate: Mapping[str, float]) -> dict[str, float]:
        """App -> its virtual finish time: the past one if it is done, else as if each user kept its present rate.

        `rate`: app -> GPUs. The apps of a user share the user's rate equally, after its ended apps are served; when a
        smaller app is done, the others speed up.
        """
        found: dict[str, float] = {}
        of_user: dict[tuple[str, str], list[str]] = {}
        for a, e in self.apps.items():
            if e.need_gpu_s - e.served_gpu_s > EPS:
                of_user.setdefault((e.queue, e.user), []).append(a)
            else:
                found[a] = self.at_s if e.done_s is None else e.done_s
        for members in of_user.values():
            total, before = sum([rate[a] for a in members]), 0.0
            here: list[tuple[float, str]] = []
            for a in members:
                e = self.apps[a]
                if e.gone:
                    before += e.left_gpu_s
                else:
                    here.append((e.left_gpu_s, a))
            here.sort(key=itemgetter(0))
            k = len(here)
            for i, (left, a) in enumerate(here):
                served_s = (before + (k - i) * left) / total if total > 0 else math.inf
                found[a] = self.at_s + max(served_s, left / self.apps[a].width_gpus)
                before += left
        return found


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
