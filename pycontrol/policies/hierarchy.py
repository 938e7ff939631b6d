"""Max-min shares of a cluster's GPUs: of queues by weight, of the users of a queue, and of the apps of a user.

None gets more than it can use; the others share what it leaves, at each level.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pycontrol.model.value import value


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
    done_s: float | None = None
    """When `need_gpu_s` was served; None before."""
    gone: bool = False
    """Whether it has ended on the real cluster."""


@value
class Weights:
    """Weights and limits of sharing. Queues and users that are not named have weight 1."""

    gpus: int
    """GPUs of the cluster, or of the virtual cluster."""
    queues: Mapping[str, float] = field(default_factory=dict)
    most_gpus: Mapping[str, float] = field(default_factory=dict)
    """Queue -> the most GPUs that it may have."""
    users: Mapping[str, float] = field(default_factory=dict)


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
