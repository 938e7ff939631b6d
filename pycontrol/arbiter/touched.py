"""Which apps changed, for the reader who takes pictures of the state."""

from __future__ import annotations

from pycontrol.arbiter.facts import AppArrived, AppChanged, AppEnded, AppMoved, AppsForgotten, Fact, Restored


class Touched:
    """Apps that changed since the last picture; `all`: every app may have."""

    def __init__(self) -> None:
        self.app_ids: set[str] = set()
        self.all = False

    def note(self, fact: Fact) -> None:
        """Notes a fact that is not about a GPU."""
        if isinstance(fact, AppArrived | AppChanged | AppEnded | AppMoved):
            self.app_ids.add(fact.app_id)
        elif isinstance(fact, AppsForgotten):
            self.app_ids.update(fact.app_ids)
        elif isinstance(fact, Restored):
            self.all = True
