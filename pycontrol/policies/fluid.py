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

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from pycontrol.model.value import value

EPS = 1e-9
ARRIVALS_MAX = 64
"""Most times at which arrivals since the last round are joined; more arrivals are joined in groups of neighbours."""


@value
class VirtualApp:
    """An app in the ideal; work in serial GPU-seconds."""

    queue: str
    user: str
    declared_gpu_s: float
    """The work that it declared at submission."""
    width_gpus: int
    """The GPUs that it declared at submission that it can use at the same time."""
    need_gpu_s: float
    """Its work in the ideal: the declared work, more if it has used more, less if it ended early."""
    served_gpu_s: float = 0.0
    done_s: float | None = None
    """When `need_gpu_s` was served; None before."""
    gone: bool = False
    """Whether it has ended on the real cluster."""

    @property
    def left_gpu_s(self) -> float:
        """Work that the ideal has yet to serve."""
        return max(0.0, self.need_gpu_s - self.served_gpu_s)

    def with_service(self, served_gpu_s: float) -> VirtualApp:
        """The same app with another `served_gpu_s`."""
        return VirtualApp(
            self.queue, self.user, self.declared_gpu_s, self.width_gpus, self.need_gpu_s, served_gpu_s, self.done_s,
            self.gone,
        )  # fmt: skip

    def to_json(self) -> list[Any]:
        """Plain values, for `Plan.memory`."""
        return [
            self.queue, self.user, self.declared_gpu_s, self.width_gpus, self.need_gpu_s, self.served_gpu_s,
            self.done_s, self.gone,
        ]  # fmt: skip


@value
class Weights:
    """Weights and limits of sharing. Queues and users that are not named have weight 1."""

    gpus: int
    """GPUs of the cluster, or of the virtual cluster."""
    queues: Mapping[str, float] = field(default_factory=dict)
    most_gpus: Mapping[str, float] = field(default_factory=dict)
    """Queue -> the most GPUs that it may have."""
    users: Mapping[str, float] = field(default_factory=dict)


@value
class Fluid:
    """The state of the ideal at `at_s`. Immutable; rates are constant until an app arrives or is done."""

    at_s: float
    apps: Mapping[str, VirtualApp]

    @classmethod
    def from_json(cls, memory: Mapping[str, Any]) -> Fluid | None:
        """The ideal in `Plan.memory`; None if the memory has another form."""
        if not {"at_s", "apps"} <= memory.keys():
            return None
        return cls(float(memory["at_s"]), {a: VirtualApp(*e) for a, e in memory["apps"].items()})

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `Plan.memory`."""
        return {"at_s": self.at_s, "apps": {a: e.to_json() for a, e in self.apps.items()}}

    def active(self) -> dict[str, VirtualApp]:
        """The apps with work left."""
        return {a: e for a, e in self.apps.items() if e.left_gpu_s > EPS}

    def rates(self, weights: Weights) -> dict[str, float]:
        """App -> its rate in GPUs, for apps with work left."""
        return rates(self.active(), weights)

    def at(self, until_s: float, weights: Weights) -> Fluid:
        """The ideal at a later time if no app arrives."""
        now_s, apps, active = self.at_s, dict(self.apps), self.active()
        served = {a: e.served_gpu_s for a, e in active.items()}
        while active and until_s > now_s:
            rate = rates(active, weights)
            first_s = min(
                (max(0.0, e.need_gpu_s - served[a]) / rate[a] for a, e in active.items() if rate[a] > 0),
                default=math.inf,
            )
            step_s = min(first_s, until_s - now_s)
            now_s = until_s if step_s < first_s else now_s + step_s
            for a, e in list(active.items()):
                so_far = served[a] = served[a] + step_s * rate[a]
                if e.need_gpu_s - so_far <= EPS * max(1.0, e.need_gpu_s):
                    if not e.gone:
                        apps[a] = replace(e, served_gpu_s=e.need_gpu_s, done_s=now_s)
                    else:
                        del apps[a]
                    del active[a]
        for a, e in active.items():
            apps[a] = e.with_service(served[a])
        return Fluid(until_s, apps)

    def finish_s(self, rate: Mapping[str, float]) -> dict[str, float]:
        """App -> its virtual finish time: the past one if it is done, else as if each user kept its present rate.

        `rate`: app -> GPUs. The apps of a user share the user's rate equally, after its ended apps are served; when a
        smaller app is done, the others speed up.
        """
        left = {a: e.left_gpu_s for a, e in self.apps.items()}
        found: dict[str, float] = {}
        of_user: dict[tuple[str, str], list[str]] = {}
        for a, e in self.apps.items():
            if left[a] > EPS:
                of_user.setdefault((e.queue, e.user), []).append(a)
            else:
                found[a] = self.at_s if e.done_s is None else e.done_s
        for members in of_user.values():
            total = sum([rate[a] for a in members])
            before = sum([left[a] for a in members if self.apps[a].gone])
            here = [a for a in members if not self.apps[a].gone]
            here.sort(key=left.__getitem__)
            k = len(here)
            for i, a in enumerate(here):
                served_s = (before + (k - i) * left[a]) / total if total > 0 else math.inf
                found[a] = self.at_s + max(served_s, left[a] / self.apps[a].width_gpus)
                before += left[a]
        return found


def rates(active: Mapping[str, VirtualApp], weights: Weights) -> dict[str, float]:
    """App -> its rate in GPUs: max-min among queues, then users, then apps; each at most its width."""
    tree: dict[str, dict[str, list[str]]] = {}
    for a, e in active.items():
        tree.setdefault(e.queue, {}).setdefault(e.user, []).append(a)
    queues = sorted(tree)
    users_of = {q: sorted(tree[q]) for q in queues}
    caps_user = {q: [_width(tree[q][u], active, weights.gpus) for u in users_of[q]] for q in queues}
    caps = [min(weights.most_gpus.get(q, weights.gpus), sum(caps_user[q])) for q in queues]
    of_queue = max_min(weights.gpus, [weights.queues.get(q, 1.0) for q in queues], caps)
    found: dict[str, float] = {}
    for q, queue_gpus in zip(queues, of_queue, strict=True):
        of_user = max_min(queue_gpus, [weights.users.get(u, 1.0) for u in users_of[q]], caps_user[q])
        for u, user_gpus in zip(users_of[q], of_user, strict=True):
            members = tree[q][u]
            if len(members) == 1:
                found[members[0]] = min(active[members[0]].width_gpus, user_gpus)
            else:
                _share(members, active, user_gpus, found)
    return found


def _width(members: Sequence[str], active: Mapping[str, VirtualApp], most_gpus: int) -> int:
    """GPUs that a user's apps can use at the same time, at most `most_gpus`."""
    return min(most_gpus, sum([active[a].width_gpus for a in members]))


def _share(members: Sequence[str], active: Mapping[str, VirtualApp], gpus: float, found: dict[str, float]) -> None:
    """Divides a user's GPUs among its apps into `found`: ended apps first."""
    for gone in (True, False):
        some = [a for a in members if active[a].gone is gone]
        shares = max_min(gpus, [1.0] * len(some), [active[a].width_gpus for a in some])
        found.update(zip(some, shares, strict=True))
        gpus -= sum(shares)


def max_min(total: float, weights: Sequence[float], caps: Sequence[float]) -> list[float]:
    """Weighted max-min shares of `total`, each at most its cap."""
    reached = [cap / weight for cap, weight in zip(caps, weights, strict=True)]
    left, weight = float(total), float(sum(weights))
    shares = [0.0] * len(caps)
    for i in sorted(range(len(caps)), key=reached.__getitem__):
        cap, own = caps[i], left * weights[i] / weight if weight > 0 else 0.0
        share = shares[i] = cap if cap < own else own
        left -= share
        weight -= weights[i]
    return shares


def joined(fluid: Fluid, newcomers: Sequence[tuple[float, str, VirtualApp]], weights: Weights) -> Fluid:
    """The ideal at the last arrival with new apps, (arrival, id, app): as a round at each arrival would make it.

    Apps that arrived before `at_s`, or just before another one of many (`ARRIVALS_MAX`), are credited their rate since.
    """
    late = [x for x in newcomers if x[0] < fluid.at_s]
    rest = sorted((x for x in newcomers if x[0] >= fluid.at_s), key=lambda found: found[:2])
    size = max(1, -(-len(rest) // ARRIVALS_MAX))
    for group in (late, *(rest[k : k + size] for k in range(0, len(rest), size))):
        if group:
            fluid = _with(fluid.at(max(fluid.at_s, group[-1][0]), weights), group, weights)
    return fluid


def _with(fluid: Fluid, group: Sequence[tuple[float, str, VirtualApp]], weights: Weights) -> Fluid:
    """The ideal with new apps; each is credited its present rate since its arrival."""
    apps = {**fluid.apps, **{app_id: app for _, app_id, app in group}}
    rate = rates(Fluid(fluid.at_s, apps).active(), weights) if group[0][0] < fluid.at_s else {}
    for came_s, app_id, app in group:
        credit_gpu_s = max(0.0, fluid.at_s - came_s) * rate.get(app_id, 0.0)
        apps[app_id] = replace(app, served_gpu_s=min(app.need_gpu_s, credit_gpu_s))
    return Fluid(fluid.at_s, apps)
