"""The marks of what worlds reach, the choice that follows them, and oracles that ask at different times."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.faults.clock import Violation
from tests.faults.forever import Choice, Found, play_on
from tests.faults.marks import ALERTS, ALL, RULES, never
from tests.faults.schedule import Schedule, draw
from tests.faults.world import World


def test_each_alert_of_the_rules_has_a_mark() -> None:
    assert set(ALERTS) == set(re.findall(r"alert: (\w+)", RULES.read_text()))


def test_what_was_not_reached_is_named() -> None:
    assert never(ALL - {"fact LeaseIdle", "alert IsonomyDown"}) == "never reached: alert IsonomyDown, fact LeaseIdle"


def test_schedules_are_changed_that_reached_more_than_any_before() -> None:
    choice, first, second = Choice(1), draw(1), draw(2)
    assert choice.learn(first, {"fact LeaseIdle": 3}) == ["fact LeaseIdle"]
    assert choice.learn(second, {"fact LeaseIdle": 2}) == []
    assert choice.worth == [first]
    assert choice.learn(second, {"fact LeaseIdle": 9}) == []
    assert choice.worth == [first, second], "so often as none before"
    seeds = {s["seed"] for s in (choice.next() for _ in range(40))}
    assert len(seeds) == 40
    assert any(s != draw(s["seed"]) for s in (choice.next() for _ in range(40)))


def _fails(schedule: Schedule) -> Found:
    kills = [f for f in schedule["faults"] if f["kind"] == "plane_kill"]
    return ("crash", "it was killed", {}) if kills else ("", "", {})


def test_what_fails_is_kept_in_its_smallest_form(tmp_path: Path) -> None:
    failed = play_on(1, 1, tmp_path, _fails, list, batches=5)
    kept = [json.loads(f.read_text()) for f in tmp_path.glob("crash-*.json")]
    assert len(kept) == failed > 0
    assert {f["kind"] for s in kept for f in s["faults"]} == {"plane_kill"}


def test_who_waits_beside_free_gpus_in_the_quiet_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at other things every second do not make the oracle forget since when."""
    schedule = draw(3) | {"faults": [], "cells": False, "exchange": False, "queue_max": {}, "apps": draw(3)["apps"][:1]}
    world = World(schedule)
    monkeypatch.setattr(World, "_waiting", lambda self: [("application_1_9999", 1, False)])
    monkeypatch.setattr(World, "_all_over", lambda self: False)
    with pytest.raises(Violation) as found:
        world.run()
    assert found.value.kind == "idle gpus"
