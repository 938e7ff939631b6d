"""A bounded part of `make explore`, and each of the planted races, three of which were there once."""

from __future__ import annotations

import pickle
import subprocess
import sys
from unittest import mock

import pytest

from pycontrol.arbiter.ledger.lease import ACTIVE
from pycontrol.arbiter.round import commit
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.values import Placed
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import reason
from tests.explore.kinds import KINDS
from tests.explore.planted import PLANTED
from tests.explore.search import Continuation, Copies, beginnings, digest, search
from tests.explore.world import play
from tests.faults.mutants import ROOT


@pytest.mark.parametrize("kind", KINDS)
def test_no_order_of_events_breaks_a_promise(kind: str) -> None:
    found = search(kind, 400)
    assert not found.failure, str(found)
    assert found.states >= 400


FOUND = {
    "a worker that waits for a container of the past goes with its revoked lease, before the app gets the GPU anew": (
        "cells",
        "plain arrives; wake; decide; wake; carry out; decide; sleep; decide",
    ),
    "a container that was to be killed and is adopted carries the worker that waits for its GPU": (
        "cells",
        "plain arrives; wake; decide; wake; carry out; container runs; decide; rm lost; rm back; carry out; "
        "container runs; wake; wake; decide; wake",
    ),
    "a gang that ended while Agents answered is no longer on offer to its app": (
        "themis",
        "agent arrives; plain arrives; agent registers; agent hears; wake; agent hears; agent speaks; decide; "
        "carry out; carry out; carry out; container runs; container runs; container runs; sleep; wake; "
        "a container fails; wake; decide",
    ),
    "GPUs for containers that an ended attempt asked for are released at once, and its next attempt gets them": (
        "changes",
        "plain arrives; wake; decide; plain's master fails; carry out; carry out; carry out",
    ),
    "an app without an Agent keeps its GPUs of a machine that is drained, and nobody wakes up for them": (
        "changes",
        "plain arrives; wake; decide; carry out; carry out; carry out; container runs; container runs; container runs; "
        "drain",
    ),
}
"""What longer searches found: (kind, moves)."""


@pytest.mark.parametrize("name", FOUND)
def test_what_a_longer_search_found_is_mended(name: str) -> None:
    kind, moves = FOUND[name]
    Continuation().check(play(kind, moves))


def test_an_app_that_borrows_where_its_own_cells_fit_owns_them_and_is_not_revoked_for_itself() -> None:
    world = play(*FOUND["a container that was to be killed and is adopted carries the worker that waits for its GPU"])
    here = world.arbiter.durable.leases[Gpu("one", 0)]
    assert (here.guaranteed, here.container_id, here.state) == (True, "c1001", ACTIVE)


def test_a_gang_in_the_way_of_its_own_app_beside_one_that_is_lent_for_a_time_waits_for_that() -> None:
    kind, moves = FOUND["a container that was to be killed and is adopted carries the worker that waits for its GPU"]
    world = play(kind, moves.removesuffix("; decide; wake"))
    own, lent = world.arbiter.durable.leases[Gpu("one", 0)].grant_id, {"another": world.now + 50}
    placed = mock.patch.object(CellSupply, "place", return_value=Placed((), (own, "another")))
    with placed, mock.patch.object(commit, "_lent", return_value=lent):
        world.do("decide")
    assert not world.arbiter.durable.leases[Gpu("one", 0)].guaranteed
    assert "min_lend_s" in reason(world.arbiter, "plain", world.now).sentence


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_continues_as_the_world_itself(kind: str) -> None:
    for path in beginnings(kind):
        world = play(kind, "; ".join(path))
        again = pickle.loads(Copies.of(world))
        assert again.arbiter is not world.arbiter
        for _ in range(12):
            assert digest(again) == digest(world)
            due = world.due()[:1]
            for name in due:
                world.do(name)
                again.do(name)
            assert [type(e) for e in again.events] == [type(e) for e in world.events]


def test_states_that_differ_in_when_they_are_and_in_ids_are_one() -> None:
    world = play("isonomy", "; ".join(beginnings("isonomy")[1]))
    seen = [digest(world)]
    while len(seen) < 40 and seen[-1] not in seen[:-1]:
        world.do(world.due()[0])
        seen.append(digest(world))
    assert seen[-1] in seen[:-1], "an app that keeps its GPUs comes back to the same state"


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_race_is_found(name: str) -> None:
    command = [sys.executable, "-m", "tests.explore.planted", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
