"""A short search for faults with each target, and all inputs that found one before. A long search: `make fuzz`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.fuzz import solver
from tests.fuzz.__main__ import by_chance
from tests.fuzz.targets import TARGETS, quiet

SECONDS, TRIES, SEED = 4.0, 400, 20_261
AUCTIONS = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    quiet()
    yield
    logging.disable(logging.NOTSET)
    structlog.configure(**before)


@pytest.mark.parametrize("name", TARGETS)
def test_stored_inputs_find_no_fault(name: str) -> None:
    target = TARGETS[name]
    kept = target.corpus(name)
    assert kept, "a target has some inputs to begin with"
    for data in kept:
        target.run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_search_finds_no_fault(name: str) -> None:
    faults = by_chance(name, SECONDS, SEED, TRIES)
    assert not faults, "\n".join(f"{data!r:.2000}\n{how}" for data, how in faults)


def test_known_faults_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets themselves: reintroduced known faults are caught."""
    monkeypatch.setattr("tests.fuzz.targets.message_checks.TEXT_MAX_CHARS", -1)
    assert by_chance("worker_message", 60.0, SEED, 50)
    monkeypatch.setattr("submarine_patch.worker.logparse._whole", int)
    assert by_chance("log_lines", 60.0, SEED, 400)


def test_the_solver_under_sanitizers() -> None:
    problem = solver.run(SEED, SEED + AUCTIONS)
    if problem == solver.WHY_NOT:
        pytest.skip(problem)
    assert not problem
