"""The past use of accounts, which fades with a half-life and shifts their weights.

An account counts as many times its weight as its use falls short of its share of what its siblings used, at most
`MOST` times, or as few: with half of its share twice, with twice its share half. So each level is fair over about a
half-life instead of at each moment, and a group that was idle for days is served first until it has caught up. Use
fades as in Slurm's priority/multifactor plugin (PriorityDecayHalfLife).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from pycontrol.model.accounts import PLAIN, Account, Accounts
from pycontrol.model.auction import Snapshot
from pycontrol.model.value import value

MOST = 16.0
"""A weight is multiplied or divided by this at most."""
STEP = 0.25
"""Weights change in steps of 2 to this power, so that few rounds divide the whole ideal anew."""
TRIFLE = 0.01
"""Use is weighed once it is more than this part of what the cluster gives in a half-life."""
OFTEN = 64
"""How many times within a half-life use is counted, at least."""


@value
class PastUse:
    """What users used in each queue until `at_s`, GPU-s as YARN measures service, faded."""

    at_s: float
    gpu_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Queue -> user -> use. The accounts above them are those of the present tree."""
    apps: Mapping[str, tuple[str, str, float]] = field(default_factory=dict)
    """App that has not ended -> its queue, its user, and how much of its service is counted."""

    @classmethod
    def load(cls, data: Mapping[str, Any] | None, at_s: float) -> PastUse:
        """From `dump`; None: nothing was used before `at_s`."""
        return cls(at_s) if data is None else cls(data["at_s"], data["gpu_s"], data["apps"])

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {"at_s": self.at_s, "gpu_s": self.gpu_s, "apps": self.apps}

    def seen(self, snapshot: Snapshot, half_life_s: float) -> PastUse:
        """With the service since, if an app came or ended, or some time has passed; else the same."""
        now_s, ended = snapshot.now_s, snapshot.ended
        passed_s = max(0.0, now_s - self.at_s)
        if (
            passed_s < half_life_s / OFTEN
            and all(v.app_id in self.apps for v in snapshot.apps)
            and not any(a in self.apps for a in ended)
        ):
            return self
        fades = 0.5 ** (passed_s / half_life_s)
        mean = (1 - fades) * half_life_s / (passed_s * math.log(2)) if passed_s > 0 else 1.0
        gpu_s = {q: {u: x * fades for u, x in users.items() if x * fades >= 1} for q, users in self.gpu_s.items()}
        apps = {a: x for a, x in self.apps.items() if a in snapshot.present}
        used = {a: (*self.apps[a][:2], x) for a, x in ended.items() if a in self.apps}
        used |= {v.app_id: (v.queue, v.user or v.app_id, v.attained_gpu_s) for v in snapshot.apps}
        for app_id, (queue, user, attained_gpu_s) in used.items():
            new_gpu_s = attained_gpu_s - (self.apps[app_id][2] if app_id in self.apps else 0.0)
            of_queue = gpu_s.setdefault(queue, {})
            of_queue[user] = of_queue.get(user, 0.0) + max(0.0, new_gpu_s) * mean
            if app_id not in ended:
                apps[app_id] = queue, user, attained_gpu_s
        return PastUse(now_s, gpu_s, apps)

    def weighed(self, root: Account, accounts: Accounts, gpus: int, half_life_s: float) -> Account:
        """The accounts with the weights that they have by their past use of a cluster of these GPUs."""
        tree = _Used()
        for queue, users in self.gpu_s.items():
            for user, gpu_s in users.items():
                tree.add(accounts.path(queue, user), gpu_s)
        return _weighed(root, tree, TRIFLE * gpus * half_life_s)


class _Used:
    """The use of an account and of those below it."""

    def __init__(self) -> None:
        self.gpu_s = 0.0
        self.below: dict[str, _Used] = {}

    def add(self, path: tuple[str, ...], gpu_s: float) -> None:
        self.gpu_s += gpu_s
        if path:
            self.below.setdefault(path[0], _Used()).add(path[1:], gpu_s)


NO_USE = _Used()


def _weighed(account: Account, used: _Used, trifle_gpu_s: float) -> Account:
    if not used.below:
        return account
    each = {n: account.at(n) for n in sorted(account.below.keys() | used.below.keys())}
    total = sum(x.weight for x in each.values())

    def factor(weight: float, gpu_s: float) -> float:
        part = weight / total
        wanted = part * (used.gpu_s + trifle_gpu_s) / (gpu_s + part * trifle_gpu_s)
        return float(2 ** (round(math.log2(min(MOST, max(1 / MOST, wanted))) / STEP) * STEP))

    below = {
        n: replace(_weighed(x, mine, trifle_gpu_s), weight=x.weight * factor(x.weight, mine.gpu_s))
        for n, x in each.items()
        for mine in (used.below.get(n, NO_USE),)
    }
    rest = account.rest or PLAIN
    return replace(account, below=below, rest=replace(rest, weight=rest.weight * factor(rest.weight, 0.0)))
