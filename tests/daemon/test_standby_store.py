"""Apps and clocks stored on HDFS: complete or ignored, the newest wins, and an empty journal is filled from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AppArrived, AppEnded, LeaseGranted, PolicyMemory, Switched
from pycontrol.arbiter.views.settings import Settings
from pycontrol.config import Standby
from pycontrol.daemon.standby_store import KEEP, StandbySnapshot, StandbyStore, StandbyStoreError
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Container, Node, Queue, YarnApp
from pycontrol.model.events import AgentUp, ClusterReady, ClusterSnapshot, SendRegistered, StandbyRestored
from pycontrol.model.topology import Gpu
from pycontrol.policies.themis import Themis
from tests.httpd import Asked, Reply, serving


def answer(files: dict[str, bytes], asked: Asked) -> Reply:
    """The used part of WebHDFS."""
    path, query = asked.path.removeprefix("/webhdfs/v1"), asked.params
    below = [n.rpartition("/")[2] for n in files if n.startswith(f"{path}/")]
    match query["op"]:
        case "GETFILESTATUS" if below or path in files:
            return Reply({"FileStatus": {"type": "DIRECTORY" if below else "FILE", "pathSuffix": "", "length": 1}})
        case "LISTSTATUS" if below:
            return Reply({"FileStatuses": {"FileStatus": [{"pathSuffix": n, "type": "FILE"} for n in below]}})
        case "OPEN" if path in files:
            return Reply(files[path])
        case "CREATE" if "data" not in query:
            return Reply(status=307, headers={"Location": f"http://{asked.headers['Host']}{asked.url}&data=true"})
        case "CREATE":
            files[path] = asked.body
            return Reply({}, 201)
        case "RENAME":
            files[query["destination"]] = files.pop(path)
            return Reply({"boolean": True})
        case "DELETE":
            return Reply({"boolean": files.pop(path, None) is not None})
    problem = {"exception": "FileNotFoundException", "message": f"File does not exist: {path}"}
    return Reply({"RemoteException": problem}, 404)


@contextmanager
def web_hdfs() -> Iterator[tuple[str, dict[str, bytes]]]:
    """The address of a WebHDFS and its files."""
    files: dict[str, bytes] = {}
    with serving(partial(answer, files)) as url:
        yield url, files


@pytest.fixture
def hdfs() -> Iterator[tuple[str, dict[str, bytes]]]:
    """One for a test."""
    with web_hdfs() as made:
        yield made


def test_the_newest_complete_state_counts(hdfs: tuple[str, dict[str, bytes]]) -> None:
    address, files = hdfs
    kept = StandbyStore(Standby(webhdfs=address, user="u"))
    assert kept.newest() is None
    for k in range(KEEP + 2):
        kept.put(StandbySnapshot("journal", 1, {**Durable().dump(), "rounds": k}), 1e9 + k)
    assert len(files) == KEEP
    newest = max(files)
    files[newest.replace("/clocks-", "/_clocks-").replace("json", "9.json")] = b'{"half'
    assert kept.newest() == StandbySnapshot("journal", 1, {**Durable().dump(), "rounds": KEEP + 1})
    whole = json.loads(files[newest])
    for damaged in (
        b'{"damaged',
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"version": 2}',
        b"\xff\xfe",
        b"[" * 100_000,
        *(json.dumps({**whole, key: x}).encode() for key in ("by", "epoch", "state") for x in (None, [1], {"a": 1})),
        json.dumps({**whole, "state": {**whole["state"], "apps": [{"app_id": "x", "colour": 1}]}}).encode(),
        json.dumps({**whole, "version": 99}).encode(),
    ):
        files[newest] = damaged
        found = kept.newest()
        assert found is not None, damaged[:50]
        assert found.state["rounds"] == KEEP, damaged[:50]


def test_other_users_of_hdfs_may_not_read_the_state() -> None:
    files: dict[str, bytes] = {}
    modes = set()

    def noted(asked: Asked) -> Reply:
        if asked.params["op"] == "CREATE":
            modes.add(asked.params.get("permission"))
        return answer(files, asked)

    with serving(noted) as address:
        StandbyStore(Standby(webhdfs=address, user="u")).put(StandbySnapshot("journal", 1, Durable().dump()), 1e9)
    assert (len(files), modes) == (1, {"600"})


def test_the_later_epoch_counts_regardless_of_the_clocks(hdfs: tuple[str, dict[str, bytes]]) -> None:
    address, files = hdfs
    kept, state = StandbyStore(Standby(webhdfs=address, user="u")), Durable().dump()
    kept.put(StandbySnapshot("first", 1, state), 2e9)
    (name,) = files
    files[name.replace("clocks-0000000001-", "clocks-")] = files.pop(name)  # as written by a version without epochs
    kept.put(StandbySnapshot("first", 1, state), 2e9 + 1)
    kept.put(StandbySnapshot("its successor", 2, state), 1e9)
    for k in range(KEEP + 1):
        kept.put(StandbySnapshot("first", 1, state), 3e9 + k)
    found = kept.newest()
    assert found is not None
    assert found.by == "its successor"


def test_a_name_node_that_is_away_is_one_error_that_names_it() -> None:
    with pytest.raises(StandbyStoreError, match=r"http://127\.0\.0\.1:1/clocks: "):
        StandbyStore(Standby(webhdfs="http://127.0.0.1:1", folder="/clocks", user="u")).newest()


def lived() -> Durable:
    """A control plane's state: one app that ended, one that runs on a GPU."""
    state = Durable()
    for fact in (
        AppArrived("application_1_1", "old", "root.q", "u", "job", 90.0, 90.0),
        AppArrived("application_1_2", "new", "root.q", "u", "job", 100.0, 100.0),
        LeaseGranted((Gpu("m1", 0),), "application_1_2", "g", 101.0, 200.0),
        AppEnded("application_1_1", "SUCCEEDED", 110.0),
        PolicyMemory({"tables": {}}),
        Switched("drained:m2", True, "admin", 111.0),
    ):
        state.apply(fact)
    return state


def snapshot() -> ClusterSnapshot:
    node = Node("m1:1", "m1", "rack-a", 4, 65536, 64, {})
    app = YarnApp("application_1_2", "u", "root.q", "new", "YARN", 100.0, frozenset(), "appattempt_1_2_1")
    return ClusterSnapshot(True, (node,), (app,), (), (), (Queue("root.q", 1, 1),))


def test_clocks_and_switches_continue_elsewhere_without_leases() -> None:
    before = lived()
    arbiter = Arbiter(Settings(), Themis())
    arbiter.handle(StandbyRestored(json.loads(json.dumps(before.kept()))), 120.0)
    arbiter.handle(snapshot(), 120.0)
    facts = arbiter.take_facts()
    after = arbiter.durable
    assert list(after.apps) == ["application_1_2"]
    assert after.n_avg("application_1_2", 130.0) == before.n_avg("application_1_2", 130.0)
    assert after.switches == {"drained:m2"}
    assert (after.memory, after.leases) == (before.memory, {})
    replayed = Durable()
    for fact in facts:
        replayed.apply(fact)
    assert replayed.dump() == after.dump()


@pytest.mark.parametrize("ready_at_once", [True, False])
def test_an_agent_that_reconnects_first_gets_the_leases_of_its_containers(ready_at_once: bool) -> None:
    arbiter = Arbiter(Settings(), Themis())
    agent = AgentUp("application_1_2", "appattempt_1_2_1", "single", Demand(2, 1, 2, 10.0, 10.0))
    container = Container("container_1", "application_1_2", "m1:1", (Gpu("m1", 0), Gpu("m1", 1)), "g")
    effects = arbiter.handle(agent, 119.0)
    effects += arbiter.handle(replace(snapshot(), ready=ready_at_once, containers=(container,)), 120.0)
    if not ready_at_once:
        assert not [e for e in effects if isinstance(e, SendRegistered)]
        effects += arbiter.handle(ClusterReady(), 121.0)
    registered = [e for e in effects if isinstance(e, SendRegistered)]
    assert [g.gpus for e in registered for g in e.grants] == [container.gpus]


def test_a_control_plane_with_its_own_state_ignores_the_stored_one() -> None:
    arbiter = Arbiter(Settings(), Themis(), lived())
    arbiter.handle(StandbyRestored({**lived().kept(), "switches": []}), 120.0)
    assert arbiter.take_facts() == []
    assert arbiter.durable.dump() == lived().dump()
