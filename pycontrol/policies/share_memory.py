"""What a policy by shares remembers from round to round, as JSON values in `Plan.memory`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GAP = 2.0
"""A virtual user that took part in no round for more leases than this is forgotten; contested rounds are closer."""


@dataclass(frozen=True)
class Account:
    """A virtual user's deviation in GPUs by type: when it last took part, and one lease `later`."""

    deviation: Mapping[str, float]
    later: Mapping[str, float]
    seen_s: float

    def at(self, now_s: float, lease_s: float) -> dict[str, float]:
        """Its deviation at a time."""
        leases = min(GAP, max(0.0, now_s - self.seen_s) / lease_s)
        now = {**dict.fromkeys(self.later, 0.0), **self.deviation}
        return {t: n + (self.later.get(t, n) - n) * leases for t, n in now.items()}


@dataclass(frozen=True)
class ShareMemory:
    """The state of the shares after a round."""

    at_s: float | None = None
    """When that round was; None before the first."""
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """Virtual user -> its account."""
    users: Mapping[str, str] = field(default_factory=dict)
    """App -> its virtual user, for apps that want nothing now, too."""
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """App -> GPUs by type that it held."""
    lost_s: Mapping[str, float] = field(default_factory=dict)
    """App without GPUs -> when it lost its last."""
    holds: Mapping[str, float] = field(default_factory=dict)
    """App -> when the hold of GPUs for it ends."""

    @classmethod
    def of(cls, memory: Mapping[str, Any], now_s: float) -> ShareMemory:
        """The memory of a snapshot; earlier versions kept neither `next` nor `seen_s`."""
        later, seen_s = memory.get("next", {}), memory.get("seen_s", {})
        accounts = {
            user: Account(own, later.get(user, own), seen_s.get(user, now_s))
            for user, own in memory.get("deviation", {}).items()
        }
        tables = (memory.get(name, {}) for name in ("users", "held", "lost_s", "holds"))
        return cls(memory.get("at_s"), accounts, *tables)

    def to_json(self) -> dict[str, Any]:
        """The memory for a plan."""
        return {
            "at_s": self.at_s,
            "seen_s": {user: account.seen_s for user, account in self.accounts.items()},
            "deviation": {user: _rounded(account.deviation) for user, account in self.accounts.items()},
            "next": {user: _rounded(account.later) for user, account in self.accounts.items()},
            "users": self.users,
            "held": self.held,
            "lost_s": self.lost_s,
            **({"holds": self.holds} if self.holds else {}),
        }


def _rounded(own: Mapping[str, float]) -> dict[str, float]:
    return {t: round(n, 9) for t, n in own.items()}
