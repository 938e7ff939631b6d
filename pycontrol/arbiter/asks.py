"""Outstanding asks for GPUs, by app and by allocationRequestId."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycontrol.model.cluster import Ask

AskKey = tuple[str, int, int, int]
"""`Ask.key`."""
NONE: Mapping[AskKey, Ask] = {}


class Asks:
    """The newest ask under each key, without those for no containers."""

    def __init__(self, asks: Iterable[Ask] = ()) -> None:
        self._by_app: dict[str, dict[AskKey, Ask]] = {}
        self._by_request: dict[tuple[str, int], dict[AskKey, Ask]] = {}
        self.local = 0
        """How many asks name hosts or racks outside which they may not start."""
        for ask in asks:
            self.put(ask)

    def __len__(self) -> int:
        return sum(map(len, self._by_app.values()))

    def copy(self) -> Asks:
        """An independent copy."""
        other = Asks()
        other._by_app = {app_id: dict(mine) for app_id, mine in self._by_app.items()}
        other._by_request = {request: dict(alike) for request, alike in self._by_request.items()}
        other.local = self.local
        return other

    def apps(self) -> list[str]:
        """Apps with asks."""
        return list(self._by_app)

    def of(self, app_id: str) -> Mapping[AskKey, Ask]:
        """The asks of an app."""
        return self._by_app.get(app_id, NONE)

    def under(self, app_id: str, request_id: int) -> Iterable[Ask]:
        """The asks of an app under an allocationRequestId."""
        return self._by_request.get((app_id, request_id), NONE).values()

    def put(self, ask: Ask) -> None:
        """Adds or replaces an ask; a count of 0 removes it. An ask for no GPUs is ignored."""
        if ask.gpus <= 0:
            return
        mine = self._by_app.setdefault(ask.app_id, {})
        alike = self._by_request.setdefault((ask.app_id, ask.allocation_request_id), {})
        before = mine.get(ask.key)
        self.local += bool(ask.only_on and ask.count > 0) - bool(before is not None and before.only_on)
        for asks in (mine, alike):
            if ask.count > 0:
                asks[ask.key] = ask
            else:
                asks.pop(ask.key, None)
        if not alike:
            del self._by_request[ask.app_id, ask.allocation_request_id]
        if not mine:
            del self._by_app[ask.app_id]

    def drop(self, app_id: str, attempt_id: str | None = None) -> None:
        """Removes the asks of an app, or of one of its attempts."""
        for ask in list(self.of(app_id).values()):
            if attempt_id is None or ask.attempt_id == attempt_id:
                self.put(Ask(ask.attempt_id, app_id, ask.allocation_request_id, ask.gpus, 0, ask.priority))
