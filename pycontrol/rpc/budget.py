"""How many bytes may wait in the control plane: of one stream, one app, one user, and in all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of messages as they are on the wire."""

    stream: int = 8 * MIB
    app: int = 32 * MIB
    user: int = 256 * MIB
    in_all: int = 1024 * MIB


class ByteBudget:
    """What waits, by app and by user. A user's apps share its limit."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.in_all = 0
        self._of_app, self._of_user = Counter[str](), Counter[str]()
        self._users: dict[str, str] = {}

    def own(self, app_id: str, user: str) -> None:
        """Whose app it is; to be said before anything of it waits."""
        self._users.setdefault(app_id, user)

    def take(self, app_id: str, size: int) -> str:
        """Counts `size` bytes more of the app's; or counts nothing and says whose limit would be passed."""
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
        """So many bytes of the app's wait no more."""
        user = self._users.get(app_id, "")
        self.in_all -= size
        for counts, key in ((self._of_app, app_id), (self._of_user, user)):
            counts[key] -= size
            if counts[key] <= 0:
                del counts[key]

    def forget(self, app_id: str) -> None:
        """Nothing of the app waits and no stream of it is open."""
        if app_id not in self._of_app:
            self._users.pop(app_id, None)

    def heaviest(self) -> str:
        """The app of which most waits."""
        return max(self._of_app, key=lambda app_id: self._of_app[app_id])

    def of_app(self, app_id: str) -> int:
        """Bytes of one app that wait."""
        return self._of_app[app_id]
