"""`isonomy serve` and a topology file that the NodeManagers contradict."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycontrol.auction.winners import engine_name
from pycontrol.config import ConfigError, load_config
from pycontrol.daemon import control_plane as serve
from pycontrol.model.cluster import Ask, Node, Queue, YarnApp
from pycontrol.model.events import ClusterSnapshot, ExchangePosted, NodeUp

TOPOLOGY = """
racks:
  - {name: rack-a, machines: [{host: m1, gpus: 4}, {host: m2, gpus: 2}]}
"""


def node(host: str, gpus: int) -> Node:
    return Node(f"{host}:1", host, "rack-a", gpus, 65536, 64, {})


def snapshot(*nodes: Node, asking: bool = False) -> ClusterSnapshot:
    app = YarnApp("application_1_1", "u", "root.q", "a", "YARN", 1.0, frozenset(), "appattempt_1_1_1")
    ask = Ask("appattempt_1_1_1", "application_1_1", 0, 1, 1, 1, 256, 1, ())
    queues = (Queue("root.q", 1, 1),)
    return ClusterSnapshot(True, nodes, (app,) if asking else (), (ask,) if asking else (), (), queues)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[serve.ControlPlane]:
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "isonomy.yaml").write_text(
        f"topology: topology.yaml\nbridge: {{port: {free_port()}}}\nagents: {{host: 127.0.0.1, port: {free_port()}}}\n"
    )
    monkeypatch.setattr(serve, "HOUSEKEEPING_S", 0.05)
    plane = serve.ControlPlane(load_config(tmp_path / "isonomy.yaml"), "themis")
    plane.start()
    yield plane
    plane.stop()


def ended(plane: serve.ControlPlane, within_s: float) -> int | None:
    """The exit status, None while it keeps running."""
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(plane.run()), daemon=True)
    thread.start()
    thread.join(within_s)
    return status[0] if status else None


def test_nodes_that_contradict_the_file_end_it_with_one_line(
    plane: serve.ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.driver.submit(snapshot(node("m1", 4), node("m2", 3)))
    assert ended(plane, 10) == 1
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert len(errors) == 1
    assert "m2: the topology says 2 GPUs, its NodeManager registered 3" in errors[0]


@pytest.mark.parametrize("held", ["the file held", "GPUs are leased"])
def test_a_later_node_with_another_count_does_not_end_it(plane: serve.ControlPlane, held: str) -> None:
    leasing = held == "GPUs are leased"
    plane.driver.submit(snapshot(node("m1", 4), *([] if leasing else [node("m2", 2)]), asking=leasing))
    if leasing:
        until = threading.Event()
        for _ in range(200):
            if plane.driver.call(lambda a, now_s: bool(a.durable.leases)):
                break
            until.wait(0.05)
        assert plane.driver.call(lambda a, now_s: bool(a.durable.leases))
    plane.driver.settle()
    plane.report_mismatches()
    plane.driver.submit(NodeUp(node("m2", 3)))
    assert ended(plane, 0.5) is None
    assert plane.mismatches == ["m2: the topology says 2 GPUs, its NodeManager registered 3"]


@pytest.mark.parametrize(
    ("more", "notice", "engine"),
    [
        (
            "{policy: themis, policy_options: {engine: highs, budget_s: 1.5}}",
            "auctions solved by the engine highs",
            "highs",
        ),
        ("", "policy isonomy", None),
        ("policy: themis", f"policy themis, auctions solved by the engine {engine_name()}", ""),
        ("policy: tiresias", "policy tiresias", None),
    ],
)
def test_the_policy_gets_its_options_and_a_line_names_the_tenants(
    tmp_path: Path, more: str, notice: str, engine: str | None
) -> None:
    (tmp_path / "isonomy.yaml").write_text(more)
    config = load_config(tmp_path / "isonomy.yaml")
    policy = serve.policy_of(config, config.policy)
    assert notice in serve.notice_of(policy)
    assert getattr(policy, "engine", None) == engine


CELLS = """
levels: {node: 2}
hosts: [m1, m2]
virtual_clusters: {root.a: {node: 1}, root.b: {node: 1}}
"""


def cells_plane(folder: Path, exchange: str) -> serve.ControlPlane:
    (folder / "cells.yaml").write_text(CELLS)
    (folder / "isonomy.yaml").write_text(
        f"cells: {folder / 'cells.yaml'}\nexchange: {exchange}\n"
        f"bridge: {{port: {free_port()}}}\nagents: {{host: 127.0.0.1, port: {free_port()}}}\n"
    )
    return serve.ControlPlane(load_config(folder / "isonomy.yaml"), "themis")


def test_deals_survive_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    owned, deals = [], []
    for life in range(2):
        plane = cells_plane(tmp_path, "{}")
        plane.start()
        try:
            plane.driver.submit(snapshot(node("m1", 2), node("m2", 2)))
            if not life:
                for verb, vc in (("offer", "root.a"), ("request", "root.b")):
                    plane.driver.submit(ExchangePosted(verb, verb, vc, ("node", "node", 1), 4e9))
            plane.driver.settle()  # calls overtake the events that wait
            market = plane.driver.call(lambda arbiter, now_s: arbiter.exchange_service)
            owned.append([market.supply.gpus_of(vc) for vc in ("root.a", "root.b")])
            deals.append([(d.owner, d.tenant, d.offer, d.request) for d in market.exchange.deals.values()])
            assert math.isclose(sum(market.exchange.board.surplus.values()), 0, abs_tol=1e-6)
        finally:
            plane.stop()
            plane.run()
    assert owned == [[0, 4], [0, 4]]
    assert deals == [[("root.a", "root.b", "offer", "request")]] * 2


def test_a_trader_without_a_queue_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"exchange.traders: no virtual cluster root.z; the cells file has root.a"):
        cells_plane(tmp_path, "{traders: {root.z: [alice]}}").start()
