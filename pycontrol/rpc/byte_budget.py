"""Limits of the bytes that wait in the control plane: per stream, app and user, and in total."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in bytes of messages on the wire."""

    stream: int = 8 * MIB
    app: int = 32 * MIB
    user: int = 256 * MIB
    in_all: int = 1024 * MIB


class ByteBudget:
    """Counts the waiting bytes by app and by user; a user's apps share the user's limit."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.in_all = 0
        self._of_app, self._of_user = Counter[str](), Counter[str]()
        self._users: dict[str, str] = {}

    def own(self, app_id: str, user: str) -> None:
        """Set an app's user; call it before the app has waiting messages."""
        self._users.setdefault(app_id, user)

    def take(self, app_id: str, size: int) -> str:
        """Add `size` bytes of the app and return an empty string; or add nothing and say which limit is exceeded."""
        user = self._users.get(app_id, "")
        if self._of_app[app_id] + size > self.limits.app:
            return f"{app_id} has"
        if self._of_user[user] + size > self.limits.user:
            return f"the apps of {user} have"
        if self.in_all + size > self.limits.in_all:
            return "all apps together have"
        self._of_app[app_id] += size
        self._of_user[user] += size
        self.in_all += size
        return ""

    def give(self, app_id: str, size: int) -> None:
        """Subtract `size` bytes of the app."""
        user = self._users.get(app_id, "")
        self.in_all -= size
        for counts, key in ((self._of_app, app_id), (self._of_user, user)):
            counts[key] -= size
            if counts[key] <= 0:
                del counts[key]

    def forget(self, app_id: str) -> None:
        """Forget an app without open streams, if nothing of it waits."""
        if app_id not in self._of_app:
            self._users.pop(app_id, None)

    def heaviest(self) -> str:
        """The app with the most waiting bytes."""
        return max(self._of_app, key=lambda app_id: self._of_app[app_id])

    def of_app(self, app_id: str) -> int:
        """The waiting bytes of one app."""
        return self._of_app[app_id]
