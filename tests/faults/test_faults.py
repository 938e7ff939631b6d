"""The simulated world as a test: seeds by number, each schedule that once failed, and the mutants."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from pycontrol.rpc import admission
from pycontrol.runtime import driver
from tests.faults import mutants
from tests.faults.__main__ import seeds_of
from tests.faults.schedule import draw
from tests.faults.world import World

HERE = Path(__file__).parent
SEEDS, AT_ONCE = 400, 100
"""About 80 seconds of CPU time on a quiet machine; by hand: make faults SEEDS=10000."""
MUST = frozenset(
    {
        "alert IsonomyDown",
        "effect Kill",
        "effect Place",
        "effect Preempt",
        "effect SendRevoke",
        "end lapsed",
        "end lost_round",
        "end node_lost",
        "fact LeaseIdle",
        "fact NextDropped",
        "reason AgentAway",
        "reason LateRho",
        "reason RecoveryInProgress",
        "reason WaitingForRevocation",
        "fault bad_gpus",
        "fault drain",
        "fault liar",
        "fault plane_crash",
        "fault rm_restart",
        "fault worker_kill",
    }
)
"""What each hundred seeds must reach."""
FOUND = sorted(p.name for p in (HERE / "found").glob("*.json"))


def play(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Plays in a separate process: sets of names have the same order in all of them."""
    command = [sys.executable, "-m", "tests.faults", *arguments]
    return subprocess.run(
        command,
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )


@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_ONCE))
def test_no_invariant_breaks_in_faulty_worlds(first: int) -> None:
    done = play("--first", str(first), "--seeds", str(AT_ONCE), "--jobs", "2")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"{AT_ONCE} seeds, 0 failed" in done.stdout
    missed = set(done.stdout.partition("never reached: ")[2].strip().split(", "))
    assert not missed & MUST


def test_schedules_that_once_failed_pass() -> None:
    done = play("--file", *(str(HERE / "found" / name) for name in FOUND))
    assert (done.returncode, done.stdout) == (0, f"{len(FOUND)} files, 0 failed\n"), done.stdout[-4000:] + done.stderr


def test_a_seed_repeats_itself_bit_for_bit() -> None:
    first, second = (play("--seed", "11", "--story").stdout for _ in range(2))
    assert first == second
    assert len(first.splitlines()) > 100


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_each_mutant_still_applies(name: str) -> None:
    file, text = mutants.mutated(name)
    compile(text, file, "exec")


def test_a_world_gives_the_process_its_clocks_and_ids_back() -> None:
    """Else a test that runs after it in this process waits for a clock that stands still."""
    before = uuid.uuid4
    World(draw(7)).run()
    assert (admission.time, driver.time, uuid.uuid4) == (time, time, before)


def test_seeds_are_given_as_a_count_or_a_range() -> None:
    assert seeds_of("3", 7) == range(7, 10)
    assert seeds_of("5..6", 1) == range(5, 7)
