"""`isonomy exchange`: its output, its permissions, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pycontrol.model import events as ev
from pycontrol.model.cluster import Queue
from pycontrol.simulation.scene import picture
from pycontrol.web.feed import Feed
from pycontrol.web.router import Router
from tests.arbiter.test_cells import CELLS
from tests.arbiter.test_exchange import A, B, Trading
from tests.cells.files import layout_of
from tests.cli.conftest import ADMIN, Rm, run
from tests.web.scene import Kept, Scene


class Floor(Scene):
    """A scene whose queues own cells; `trader` may exchange those of root.a."""

    def __init__(self) -> None:
        self.world = Trading()  # type: ignore[assignment]
        self.issued = []
        self.kept = Kept()
        self.router = Router(
            self, issue=self._issue, arbiter_address="host:26501", traders={A: ["trader"]}, picture=picture
        )
        self.world.add_app("application_1_0001", 2, 2, 4000, B)
        self.world.run(10)


@pytest.fixture
def floor(rm: Rm) -> Rm:
    rm.scene = Floor()
    return rm


def test_a_queue_that_yarn_does_not_have_is_named_when_cells_are_applied(floor: Rm, tmp_path: Path) -> None:
    """A misspelt queue would leave its apps without their cells, and nothing would say so."""
    floor.scene.router.read_cells = lambda _: (layout_of(CELLS), {}, "", list)
    world, file = floor.scene.world, tmp_path / "cells.yaml"
    file.write_text(CELLS)
    for paths, said in (((), ""), ((A, B), ""), ((A, "root.bb"), f"; YARN has no leaf queue {B}: nobody can use")):
        world.arbiter.cluster.queues = {path: Queue(path) for path in paths}
        output = " ".join(run(floor, "cells", "apply", str(file), user=ADMIN).output.split())
        assert output.startswith(f"the cells are as the file says; all that runs continues{said}")
        assert ("leaf queue" in output) == bool(said)


def test_the_cells_and_the_board_are_read_once_for_all_who_ask_until_one_changes_them(
    floor: Rm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large cluster it takes the Arbiter's thread 0.1 s and more."""
    monkeypatch.setattr("pycontrol.queries.pictures.VIEW_SHARE", 1e-9)
    handle = floor.scene.router.handle
    for path in ("cells", "exchange"):
        first, other = (handle("GET", path, {}, user, False)[1] for user in ("ann", "bob"))
        assert first is other
    run(floor, "exchange", "offer", A, "small:1", "--for", "10m", "--id", "spare", user=ADMIN)
    assert "spare" in str(handle("GET", "exchange", {}, "ann", False)[1])


def test_the_output_for_a_deal_from_posting_to_its_end(floor: Rm) -> None:
    offered = run(floor, "exchange", "offer", A, "small:1", "--for", "10m", "--id", "spare", user=ADMIN)
    assert (offered.exit_code, offered.output) == (0, "spare is on the board, and waits for a match\n")
    assert "spare" in run(floor, "exchange", "list").output
    got = run(floor, "exchange", "request", "b", "small:1", "--for", "5m", "--id", "need", user=ADMIN)
    assert got.output == "need: root.a lends 1 x small to root.b (deal1)\n"
    listed = json.loads(run(floor, "exchange", "list", "-o", "json").output)
    assert [(d["owner"], d["tenant"], d["offer"], d["request"]) for d in listed["deals"]] == [(A, B, "spare", "need")]
    assert {b["vc"]: b["gpus"] for b in listed["books"]} == {A: 4, B: 6}
    status = run(floor, "cells", "status").output
    assert "exchange: root.b has 1 x small of root.a (deal1) for 5 min more" in status
    rows = {line.split()[0]: line.split()[1:4] for line in status.splitlines() if line.startswith("root.")}
    assert rows == {A: ["4", "0", "2"], B: ["6", "2", "0"]}
    floor.scene.world.add_app("application_1_0002", 2, 1, 4000, B)
    floor.scene.world.run(30)
    assert "exchange: root.b has 1 x small of root.a (deal1)" in run(floor, "explain", "application_1_0002").output
    assert "deal1: 1 x small of root.a for root.b" in run(floor, "rounds").output
    floor.scene.world.run(400)
    floor.scene.world.submit(ev.Tick())
    assert "no deal is in force" in run(floor, "exchange", "list").output
    feed = Feed(floor.scene.kept)
    for fact in floor.scene.world.journal:
        feed.append([fact], 0.0)
    events = [e["text"] for e in feed.since(None, 0.0, 500)["events"] if e["kind"] == "ExchangeChanged"]
    lends = "root.a lends 1 x small to root.b (deal1)"
    assert events == [f"exchange {lends}", f"exchange over: {lends}"]


def test_a_changed_file_names_the_deals_that_it_ends(floor: Rm, tmp_path: Path) -> None:
    changed = layout_of(CELLS.replace("root.a: {big: 1, small: 1", "root.a: {big: 1"))
    floor.scene.router.read_cells = lambda _: (changed, {}, "cp kept FILE", list)
    run(floor, "exchange", "offer", A, "small:1", "--for", "10m", user=ADMIN)
    run(floor, "exchange", "request", B, "small:1", "--for", "5m", user=ADMIN)
    (file := tmp_path / "cells.yaml").touch()
    applied = run(floor, "cells", "apply", str(file), user=ADMIN)
    assert "exchange has ended for deal1: the file has no cells for it any more" in applied.output
    assert applied.output.endswith("; the way back: cp kept FILE\n")
    assert run(floor, "status").output.count("root applied the cells file") == 1
    assert [(x.switch, x.user) for x in floor.scene.world.arbiter.durable.acts] == [("cells", ADMIN)]


def test_a_trader_may_exchange_the_cells_of_its_own_queue_only(floor: Rm) -> None:
    assert run(floor, "exchange", "offer", A, "big:1", "--for", "1h", "--id", "mine", user="trader").exit_code == 0
    for args in (("offer", B, "small:1", "--for", "1h"), ("request", B, "big:1", "--for", "1h")):
        refused = run(floor, "exchange", *args, user="trader")
        assert refused.exit_code == 1
        assert "trader is not in YARN's admin ACL" in refused.output
    assert run(floor, "exchange", "withdraw", "mine", user="stranger").exit_code == 1
    assert run(floor, "exchange", "withdraw", "mine", user="trader").output == "mine is off the board\n"


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (("offer", "root.z", "small:1", "--for", "1h"), 1, "no virtual cluster root.z; there are root.a, root.b"),
        (("offer", A, "small:3", "--for", "1h"), 1, "root.a owns 1 small cells now, it cannot offer 3"),
        (("offer", A, "huge:1", "--for", "3600"), 2, "there is no cell type huge; known are big, gpu, pair, small"),
        (("offer", A, "gpu:1", "--for", "1h"), 2, "write gpu:COUNT@CHAIN"),
        (("offer", A, "small", "--for", "1h"), 2, "must be TYPE:COUNT"),
        (("offer", A, "small:1", "--for", "soon"), 2, "--for soon: must be as 30d, 12h, 90m"),
        (("offer", A, "small:1", "--for", "0h"), 2, "must be more than 0"),
        (("offer", A, "small:1"), 2, "Missing option '--for'"),
        (("request", B, "small:1", "--for", "1h", "--in-return", "big:1"), 1, "cannot lend in return 1"),
        (("request", B, "small:0", "--for", "1h"), 1, "must be at least 1"),
        (("withdraw", "nothing"), 1, "there is no offer or request nothing"),
    ],
)
def test_impossible_postings_are_refused_with_a_remedy(floor: Rm, args: tuple[str, ...], status: int, why: str) -> None:
    floor.scene.world.now = 2e9
    refused = run(floor, "exchange", *args, user=ADMIN)
    assert (refused.exit_code, why in refused.output) == (status, True), refused.output


def test_without_cells_there_is_nothing_to_exchange(rm: Rm) -> None:
    assert "names no cells file" in run(rm, "exchange", "list").output
    refused = run(rm, "exchange", "offer", A, "node:1", "--for", "1h", user=ADMIN)
    assert "there are no virtual clusters" in refused.output
