"""The ideal that the default policy follows: hierarchical processor sharing of a cluster that splits freely.

Groups, queues and users share the GPUs by weight, level by level, and the apps of a user equally. None gets
more than it can use; the others share what it leaves (max-min at each level). Each app's declared work is served at
this rate; the time at which its work is done is its virtual finish time. On one machine with work that splits freely,
serving jobs in the order of these times finishes none of them later than the ideal does (Friedman and Henderson,
Fairness and efficiency in web server protocols, SIGMETRICS '03; with weights and wrong sizes: Dell'Amico, Carra and
Michiardi, PSBS: Practical Size-Based Scheduling, IEEE Transactions on Computers 2016).

An app that has ended stays in the ideal until the service that it really attained is served there too, before its
user's other apps. A user with several apps in sequence is therefore treated like a user with one app of the same work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pycontrol.policies.hierarchy import Node, VirtualApp, Weights

EPS = 1e-9
TOGETHER_S = 1e-6
"""Apps that are done within this time are done together, whatever rounding does."""
ARRIVALS_MAX = 64
"""Most times at which arrivals since the last round are joined; more arrivals are joined in groups of neighbours."""


class Fluid:
    """The state of the ideal at `at_s`. Immutable; a later ideal shares what has not changed."""

    __slots__ = ("_finish_s", "apps", "at_s", "cluster", "weights")

    def __init__(
        self, at_s: float, weights: Weights, apps: Mapping[str, VirtualApp] | None = None, cluster: Node | None = None
    ) -> None:
        self.at_s, self.weights = at_s, weights
        self.apps: Mapping[str, VirtualApp] = apps or {}
        self.cluster = cluster or Node()
        self._finish_s: dict[str, float] = {}
        """App -> its virtual finish time, for users of whom one was asked for."""

    @classmethod
    def from_json(cls, memory: Mapping[str, Any], weights: Weights) -> Fluid | None:
        """The ideal in `Plan.memory`, with these weights from then on; None if the memory has another form."""
        if not {"at_s", "apps"} <= memory.keys():
            return None
        at_s, known = float(memory["at_s"]), memory["apps"]
        if isinstance(known, Kept):
            return known.fluid.weighted(weights)
        apps = dict[str, tuple[VirtualApp, float]]()
        for app_id, (queue, user, declared, width, need, served_gpu_s, done_s, gone) in known.items():
            apps[app_id] = VirtualApp(queue, user, declared, width, need, done_s, gone), need - served_gpu_s
        return cls(at_s, weights).having(apps)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `Plan.memory`."""
        return {"at_s": self.at_s, "apps": Kept(self)}

    def weighted(self, weights: Weights) -> Fluid:
        """The ideal with these weights from now on."""
        return self if weights == self.weights else self._anew(self.at_s, weights)

    def at(self, until_s: float) -> Fluid:
        """The ideal at a later time if no app arrives."""
        if until_s <= self.at_s:
            return self if until_s == self.at_s else self._anew(until_s, self.weights)
        now_s, cluster, apps = self.at_s, self.cluster, self.apps
        left = dict(apps) if cluster.next_s <= until_s + TOGETHER_S else {}
        while cluster.next_s <= until_s + TOGETHER_S and cluster.next_s < math.inf:
            now_s, cluster, apps = min(max(now_s, cluster.next_s), until_s), cluster.copy(), left
            for a in cluster.done(now_s + TOGETHER_S):
                app = left[a]
                cluster.user(self.weights.path(app)).those_with(app).remove(a, app.width_gpus)
                if app.gone:
                    del left[a]
                else:
                    left[a] = replace(app, done_s=now_s)
            cluster.settle(now_s, self.weights)
        return Fluid(until_s, self.weights, apps, cluster)

    def having(self, changes: Mapping[str, tuple[VirtualApp, float]]) -> Fluid:
        """The ideal with these apps, new or changed, and their work left, GPU-s; those that owe nothing leave."""
        cluster, apps = self.cluster.copy(), dict(self.apps)
        for a, (app, left_gpu_s) in changes.items():
            old = apps.get(a)
            if old is not None and self.rate(a) is not None:
                cluster.user(self.weights.path(old)).those_with(old).remove(a, old.width_gpus)
            if left_gpu_s > EPS:
                user = cluster.user(self.weights.path(app))
                user.those_with(app).put(a, app.width_gpus, left_gpu_s, self.at_s)
            apps[a] = app
            if app.gone and left_gpu_s <= EPS:
                del apps[a]
        cluster.settle(self.at_s, self.weights)
        return Fluid(self.at_s, self.weights, apps, cluster)

    def changed(self, changes: Mapping[str, VirtualApp]) -> Fluid:
        """The ideal with some of its apps replaced: what they were served, they were."""
        return self.having(
            {a: (new, self.left_gpu_s(a) + new.need_gpu_s - self.apps[a].need_gpu_s) for a, new in changes.items()}
        )

    def joined_by(self, group: Sequence[tuple[float, str, VirtualApp]]) -> Fluid:
        """The ideal with new apps, (arrival, id, app); each is credited its present rate since its arrival."""
        joined = self.having({a: (app, app.need_gpu_s) for _, a, app in group})
        late = [(self.at_s - came_s, a, app) for came_s, a, app in group if came_s < self.at_s]
        credited = {a: (app, app.need_gpu_s - since_s * (joined.rate(a) or 0.0)) for since_s, a, app in late}
        return joined.having(credited) if credited else joined

    def rate(self, app_id: str) -> float | None:
        """The app's rate in GPUs; None if it has no work left."""
        app = self.apps[app_id]
        user = self.cluster.find(self.weights.path(app))
        return user.those_with(app).rate(app_id, app.width_gpus) if user is not None else None

    def left_gpu_s(self, app_id: str) -> float:
        """The app's work left."""
        app = self.apps[app_id]
        user = self.cluster.find(self.weights.path(app))
        return user.those_with(app).left_gpu_s(app_id, app.width_gpus, self.at_s) if user is not None else 0.0

    def finish_s(self, app_id: str) -> float:
        """The app's virtual finish time: the past one if it is done, else as if its user kept its present rate."""
        found = self._finish_s.get(app_id)
        if found is None:
            app = self.apps[app_id]
            user = self.cluster.find(self.weights.path(app)) if app.done_s is None else None
            if user is not None:
                self._finish_s.update(user.finish_s(self.at_s))
            found = self._finish_s.setdefault(app_id, self.at_s if app.done_s is None else app.done_s)
        return found

    def _anew(self, at_s: float, weights: Weights) -> Fluid:
        return Fluid(at_s, weights).having({a: (app, self.left_gpu_s(a)) for a, app in self.apps.items()})


class Kept(Mapping[str, list[Any]]):
    """The apps of an ideal as plain values. The next round takes the ideal, so that it need not read them."""

    def __init__(self, fluid: Fluid) -> None:
        self.fluid = fluid

    def __getitem__(self, app_id: str) -> list[Any]:
        e = self.fluid.apps[app_id]
        served_gpu_s = e.need_gpu_s - self.fluid.left_gpu_s(app_id)
        return [e.queue, e.user, e.declared_gpu_s, e.width_gpus, e.need_gpu_s, served_gpu_s, e.done_s, e.gone]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fluid.apps)

    def __len__(self) -> int:
        return len(self.fluid.apps)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Kept) and other.fluid is self.fluid
        return same or (isinstance(other, Mapping) and dict(self) == dict(other))

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[str, list[Any]]], tuple[dict[str, list[Any]]]]:
        return dict, (dict(self),)  # another process reads them


def joined(fluid: Fluid, newcomers: Sequence[tuple[float, str, VirtualApp]]) -> Fluid:
    """The ideal at the last arrival with new apps, (arrival, id, app): as a round at each arrival would make it.

    Apps that arrived before `at_s`, or just before another one of many (`ARRIVALS_MAX`), are credited their rate since.
    """
    late = [x for x in newcomers if x[0] < fluid.at_s]
    rest = sorted((x for x in newcomers if x[0] >= fluid.at_s), key=lambda found: found[:2])
    size = max(1, -(-len(rest) // ARRIVALS_MAX))
    for group in (late, *(rest[k : k + size] for k in range(0, len(rest), size))):
        if group:
            fluid = fluid.at(max(fluid.at_s, group[-1][0])).joined_by(group)
    return fluid
