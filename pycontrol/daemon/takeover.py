"""Takeover: a standby continues from the state that the other control plane stored, before YARN's first snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from pycontrol.daemon.standby_store import StandbySnapshot, StandbyStore, StandbyStoreError
from pycontrol.model.events import StandbyRestored
from pycontrol.runtime.driver import Driver, Overloaded
from pycontrol.runtime.journal import SqliteJournal

log = structlog.get_logger("isonomy.serve")


class Superseded(Overloaded):
    """Another control plane has served since this journal was written, so the journal must be set aside."""


class Takeover:
    """Takes over once per run of a control plane. `is_empty`: its journal was empty when it was opened; `cells`: the
    text of the cells file in force."""

    def __init__(self, store: StandbyStore, journal: SqliteJournal, is_empty: bool, cells: Callable[[], str]) -> None:
        self._store, self._journal, self._was_empty, self._cells = store, journal, is_empty, cells
        self._followed: tuple[str, int] | None = None
        """(journal id, epoch) of the snapshot that this run continued from; it may still be the newest in the store."""
        self._serves = False
        """Its ResourceManager has become active, so this control plane writes the snapshots."""
        self._kept_s = time.monotonic()
        """When one was stored last, or the start."""

    def before_snapshot(self, driver: Driver) -> str | None:
        """Take over; called when this control plane's ResourceManager has become active.

        An empty journal continues from the stored snapshot. Raises Superseded if the journal is not empty and another
        control plane has served since it was written. If the store does not answer, that is unknown: raises Overloaded,
        and the plugin tries again; until then leases are held and no container is killed.
        Returns, the first time, the text of the cells file that was in force, empty where that is unknown.
        """
        try:
            found = self._store.newest()
        except StandbyStoreError as e:
            log.error("HDFS does not say who served before: leases are held until it does", problem=str(e))
            raise Overloaded(f"the standby's state cannot be read: {e}") from e
        try:
            self._take_over(driver, found)
        except StandbyStoreError as e:
            log.error("apps and clocks could not be saved on HDFS", problem=str(e))
        first, self._serves = not self._serves, True
        return None if not first else found.cells if found is not None else ""

    def _take_over(self, driver: Driver, found: StandbySnapshot | None) -> None:
        if found is not None and not self._ours(found) and (found.by, found.epoch) != self._followed:
            if self._serves or not self._was_empty:
                log.error("another control plane has served since: this journal is set aside; start again")
                raise Superseded
            before = found.epoch
            driver.call(lambda arbiter, now_s: self._journal.follow(before))
            driver.submit(StandbyRestored(found.state, self._journal.epoch))
            self._followed = found.by, found.epoch
            log.info("apps and clocks of an earlier control plane are taken over", apps=len(found.state["apps"]))
        # Before it serves: who takes over from it must know of this epoch.
        self.keep(*driver.call(lambda arbiter, now_s: (arbiter.durable.kept(), now_s)))

    def _ours(self, found: StandbySnapshot) -> bool:
        """Whether this journal stored it, or an earlier epoch of it; not if this is an older copy of that journal."""
        return found.by == self._journal.id and found.epoch <= self._journal.epoch

    def keep(self, state: Mapping[str, Any], now_s: float) -> None:
        """Store apps and clocks (`Durable.kept`)."""
        self._store.put(StandbySnapshot(self._journal.id, self._journal.epoch, state, self._cells()), now_s)
        self._kept_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since it last stored the state, or since the start."""
        return time.monotonic() - self._kept_s

    def secure(self, driver: Driver) -> str:
        """Store the present state before the caller continues, so that any later takeover starts from it.

        Returns why that is not certain, or an empty string.
        """
        if not self._serves:
            return "the ResourceManager has sent no snapshot yet"
        try:
            self.keep(*driver.call(lambda arbiter, now_s: (arbiter.durable.kept(), now_s)))
            found = self._store.newest()
        except StandbyStoreError as e:
            return str(e)
        return "" if found is not None and self._ours(found) else "another control plane has served since"
