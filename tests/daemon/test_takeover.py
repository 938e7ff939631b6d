"""A control plane of a pair before its first snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.views.settings import Settings
from pycontrol.daemon.standby_store import StandbySnapshot, StandbyStoreError
from pycontrol.daemon.takeover import Superseded, Takeover
from pycontrol.model.events import OperatorCommand, StandbyRestored
from pycontrol.policies import registry
from pycontrol.runtime.driver import Overloaded


class Store:
    def __init__(self, kept: StandbySnapshot | None = None) -> None:
        self.kept, self.refuses, self.away = kept, False, False

    def put(self, kept: StandbySnapshot, now_s: float) -> None:
        if self.refuses:
            raise StandbyStoreError("away")
        self.kept = kept

    def newest(self) -> StandbySnapshot | None:
        if self.away:
            raise StandbyStoreError("away")
        return self.kept


class Journal:
    id, epoch = "mine", 1

    def follow(self, epoch: int) -> int:
        self.epoch = max(self.epoch, epoch + 1)
        return self.epoch


class Driver:
    def __init__(self) -> None:
        self.arbiter = Arbiter(Settings(), registry.make("max_min"), Durable())
        self.submitted: list[Any] = []

    def call(self, fn: Any) -> Any:
        return fn(self.arbiter, 5.0)

    def submit(self, event: Any) -> None:
        self.submitted.append(event)


def test_an_empty_journal_continues_from_the_stored_state() -> None:
    store, journal, driver = Store(StandbySnapshot("other", 4, Durable().kept())), Journal(), Driver()
    Takeover(store, journal, is_empty=True, cells=str).before_snapshot(driver)
    assert [(type(e), e.epoch) for e in driver.submitted] == [(StandbyRestored, 5)]
    assert store.kept is not None
    assert (store.kept.by, store.kept.epoch) == ("mine", 5)


def test_a_journal_from_before_another_control_plane_served_is_discarded() -> None:
    with pytest.raises(Superseded):
        Takeover(Store(StandbySnapshot("other", 4, {})), Journal(), is_empty=False, cells=str).before_snapshot(Driver())


def test_who_continues_its_own_journal_stores_its_epoch_before_it_serves() -> None:
    """Else the other could take over with an earlier epoch, and late writes of this one would pass for the newest."""
    store, journal = Store(StandbySnapshot("mine", 1, Durable().kept())), Journal()
    journal.epoch = 4  # it was started again three times
    Takeover(store, journal, is_empty=False, cells=str).before_snapshot(Driver())
    assert store.kept is not None
    assert (store.kept.by, store.kept.epoch) == ("mine", 4)


@pytest.mark.parametrize("is_empty", [True, False])
def test_while_hdfs_does_not_say_who_served_before_the_plugin_is_asked_to_try_again(is_empty: bool) -> None:
    """So leases are held: by an old journal, running containers would be strangers and be killed."""
    store, driver = Store(StandbySnapshot("other", 4, Durable().kept())), Driver()
    takeover = Takeover(store, Journal(), is_empty, cells=str)
    store.away = True
    for _ in range(3):
        with pytest.raises(Overloaded, match="the standby's state cannot be read: away"):
            takeover.before_snapshot(driver)
    assert driver.submitted == []
    store.away = False
    if is_empty:
        takeover.before_snapshot(driver)
        assert [type(e) for e in driver.submitted] == [StandbyRestored]
    else:
        with pytest.raises(Superseded):
            takeover.before_snapshot(driver)


def test_a_followed_state_does_not_supersede_while_hdfs_is_not_writable() -> None:
    store, journal, driver = Store(StandbySnapshot("other", 4, Durable().kept())), Journal(), Driver()
    takeover = Takeover(store, journal, is_empty=True, cells=str)
    store.refuses = True
    takeover.before_snapshot(driver)
    takeover.before_snapshot(driver)
    assert len(driver.submitted) == 1
    store.kept = StandbySnapshot("other", 6, Durable().kept())
    with pytest.raises(Superseded):
        takeover.before_snapshot(driver)


def test_a_command_is_secure_once_a_takeover_would_restore_it() -> None:
    store, driver = Store(), Driver()
    takeover = Takeover(store, Journal(), is_empty=True, cells=str)
    assert "no snapshot" in takeover.secure(driver)
    assert store.kept is None, "what the other one kept must not be overwritten before it is read"
    takeover.before_snapshot(driver)
    driver.arbiter.handle(OperatorCommand("pause", "", "root"), 6.0)
    assert takeover.secure(driver) == ""
    assert store.kept is not None
    assert store.kept.state["switches"] == ["paused"]
    store.refuses = True
    assert takeover.secure(driver) == "away"


def test_a_command_given_to_a_superseded_control_plane_is_not_secure() -> None:
    driver = Driver()

    class Later(Store):
        def newest(self) -> StandbySnapshot | None:
            return StandbySnapshot("other", 9, Durable().kept()) if self.kept is not None else None

    takeover = Takeover(Later(), Journal(), is_empty=True, cells=str)
    takeover.before_snapshot(driver)
    assert "another control plane" in takeover.secure(driver)
