"""A virtual cluster's own policy, f and lease length, also after the cells file is read again."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import subprocess
from pathlib import Path

import pytest

from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.config import Config, ConfigError, parse
from pycontrol.daemon.control_plane import ControlPlane
from pycontrol.model.events import AppUpdated, Tick
from pycontrol.policies.drf import Drf
from pycontrol.policies.themis import Themis
from pycontrol.policies.tiresias import Tiresias
from tests.arbiter.test_cells import CELLS, world
from tests.arbiter.world import World
from tests.cells.files import layout_of


def test_lease_length_and_f_are_the_virtual_clusters_own_and_are_read_again() -> None:
    w = world()
    own = CELLS.replace("small: 1, policy: themis", "small: 1, policy: themis, f: 0.3, lease_s: 100")
    w.arbiter.reconfigure(layout_of(own), w.now, w.policy.policies)  # type: ignore[attr-defined]
    w.add_app("a", 4, 1, 4000, "root.a")
    w.add_app("b", 2, 1, 4000, "root.b")
    w.run(20)
    ends = {x.app_id: x.end_s for x in w.arbiter.durable.leases.values()}
    assert ends["a"] == 1100
    assert ends["b"] == 1200
    assert {r.vc: r.f for r in w.arbiter.receipts} == {"root.a": 0.3, "root.b": 0.0}
    assert w.arbiter.holdings.contention("a", w.now).lease_s == 100


def test_another_policy_is_in_force_with_the_next_round() -> None:
    w = world()
    w.add_app("a", 4, 1, 400, "root.a")
    w.run(10)
    before = w.arbiter.rounds.policy
    w.arbiter.reconfigure(layout_of(CELLS), w.now, {"root.a": Drf(), "root.b": Tiresias()})
    assert before == w.policy == world().policy, "a policy is a value"
    w.submit(Tick())
    w.add_app("a2", 2, 1, 400, "root.a")
    w.run(30)
    assert [r.policy for r in w.arbiter.receipts if r.vc == "root.a"][-1] == "drf"


def test_a_round_under_way_ends_when_the_cells_change() -> None:
    w = world()
    w.add_app("a", 4, 1, 400, "root.a")
    step = itertools.count(1)
    while w.arbiter.rounds.current is None and w.now < 1004:
        w.run(next(step) * 0.005)
    assert w.arbiter.rounds.current is not None
    w.arbiter.reconfigure(layout_of(CELLS.replace("big: 1, small: 1", "big: 1")), w.now)
    assert w.arbiter.rounds.current is None
    w.run(30)
    assert w.arbiter.receipts[0].note == "the cells changed during the round"
    assert len(gpus_in(w.arbiter.durable.leases.of("a"))) == 4


@pytest.fixture
def plane(tmp_path: Path) -> ControlPlane:
    (tmp_path / "cells.yaml").write_text(CELLS)
    config = parse(
        f"bridge: {{token_file: {tmp_path}/token}}\nstate_dir: {tmp_path}\n"
        f"cells: {tmp_path}/cells.yaml\npolicy: tiresias\n",
        Config,
        "isonomy.yaml",
    )
    return ControlPlane(config, "tiresias")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("policy: themis, policy_options: {budget: 5}", "did you mean budget_s"),
        ("policy: thmis", "there is no policy thmis"),
        ("lease_s: 10", "at least twice the lead"),
        ("f: 2", "must be <= 1"),
        ("policy_options: {leftovers: worst_first}", "tiresias has no option leftovers"),
    ],
)
def test_a_file_with_any_error_is_refused_whole(plane: ControlPlane, wrong: str, says: str) -> None:
    path = plane.config.cells
    assert path is not None
    path.write_text(CELLS.replace("policy: themis", wrong))
    with pytest.raises(ConfigError, match=says):
        plane.read_cells("")


def test_a_virtual_cluster_that_names_no_policy_has_that_of_isonomy_yaml(plane: ControlPlane) -> None:
    path = plane.config.cells
    assert path is not None
    text = CELLS.replace(", policy: tiresias", "")
    path.write_text(text.replace("policy: themis", "policy: themis, policy_options: {budget_s: 5}"))
    _, policies, *_ = plane.read_cells("")
    assert set(policies) == {"root.a"}
    found = policies["root.a"]
    assert isinstance(found, Themis)
    assert found.budget_s == 5


def test_the_former_file_is_kept_and_the_way_back_said(plane: ControlPlane, tmp_path: Path) -> None:
    path = plane.config.cells
    assert path is not None
    for _ in range(2):
        *_, back, in_force = plane.read_cells("")
        in_force()
        assert back == "", "the file is unchanged"
    path.write_text(CELLS.replace("policy: themis", "policy: thmis"))
    with pytest.raises(ConfigError):
        plane.read_cells("")
    path.write_text(CELLS.replace("big: 1, small: 1", "big: 1"))
    plane.read_cells("")  # and the control plane is too busy to apply it
    copy, _, apply = plane.read_cells("")[2].partition(" && ")
    assert apply == f"isonomy cells apply {path}"
    subprocess.run(shlex.split(copy), check=True)
    assert path.read_text() == CELLS


def raised(w: World, app_id: str, priority: int) -> None:
    """Raises a priority as `yarn application -updatePriority` does."""
    w.apps[app_id] = dataclasses.replace(w.apps[app_id], priority=priority)
    w.submit(AppUpdated(w.apps[app_id]))


def test_yarns_priority_orders_apps_in_a_virtual_cluster_also_when_raised_while_they_run() -> None:
    w = world(lease_s=60)
    w.arbiter.reconfigure(layout_of(CELLS), w.now, {"root.a": Drf(), "root.b": Tiresias()})
    for name, at_s in (("first", 3), ("second", 10), ("third", 17)):
        w.at(at_s, lambda name=name: w.add_app(name, 4, 1, 100_000, "root.a"))
    w.at(5, lambda: w.add_app("b", 2, 2, 100_000, "root.b"))
    w.run(40)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("first") for _ in x.gpus] == [True] * 4
    raised(w, "third", 7)
    w.run(140)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("third") for _ in x.gpus] == [True] * 4
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("first"))
