"""A process's HDFS token: first the container's, then new ones from the control plane."""

from __future__ import annotations

import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc
from submarine_patch.worker import own_hdfs_token
from submarine_patch.worker.checkpoints import files_at, newest, save
from submarine_patch.worker.own_hdfs_token import HdfsToken, NoToken
from tests.worker.fake_webhdfs import FakeHdfs

TOKENS = Path(__file__).parent / "data" / "writable.hdts"


class World:
    """A clock and a control plane that issues tokens with a life of 100 s."""

    def __init__(self) -> None:
        self.now_s, self.given, self.away = 0.0, 0, False
        self.token = HdfsToken("first", 0.0, 100.0, self.ask, lambda: self.now_s)

    def ask(self) -> tuple[str, float]:
        if self.away:
            raise NoToken("away")
        self.given += 1
        return f"new-{self.given}", self.now_s + 100.0

    def at(self, now_s: float) -> str:
        self.now_s = now_s
        return self.token.url()


def test_a_new_token_is_requested_at_half_of_its_life() -> None:
    world = World()
    assert [world.at(s) for s in (0, 49, 51, 100, 102)] == ["first", "first", "new-1", "new-1", "new-2"]
    assert (world.token.issued_s, world.token.ends_s) == (102.0, 202.0)


def test_without_an_answer_requests_become_more_frequent(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.away = True
    assert {world.at(s) for s in (50, 54, 60, 90, 99)} == {"first"}
    world.away = False
    assert world.at(100) == "first", "five seconds after the last try"
    assert world.at(104.1) == "new-1"
    assert capsys.readouterr().err == "isonomy: no new HDFS token: away\n", "said once"


def test_a_refused_token_is_replaced_and_a_refused_new_one_is_not_replaced_soon() -> None:
    world = World()
    assert world.token.refused("first")
    assert world.token.refused("first"), "another thread had it replaced"
    assert not world.token.refused("new-1"), "not again within five seconds"
    assert world.at(6) == "new-1"
    assert world.token.refused("new-1")
    world.now_s, world.away = 12.0, True
    assert not world.token.refused("new-2")


def test_a_process_that_starts_with_an_expired_token_asks_immediately() -> None:
    world = World()
    assert world.at(1000) == "new-1"


def test_files_on_hdfs_are_written_with_the_newest_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("submarine_patch.worker.webhdfs.of_container", lambda: world.token)
    (tmp_path / "hdfs").mkdir()
    store = FakeHdfs(tmp_path / "hdfs", "first")
    try:
        files = files_at("/jobs/a", store.url, "alice")
        save(files, 1, {"state.npz": b"one"})
        world.now_s, store.token = 51.0, "new-1"
        save(files, 2, {"state.npz": b"two"})
        found = newest(files)
        assert found is not None
        assert found[1] == {"state.npz": b"two"}
        store.token = "new-2"
        save(files, 3, {"state.npz": b"three"})
        found = newest(files)
        assert found is not None
        assert found[0].step == 3, "a token that was not renewed in time is replaced"
    finally:
        store.go()


class Arbiter(agent_pb2_grpc.ArbiterServicer):
    """Issues a token to callers that present the app's token."""

    def HdfsToken(self, request: pb.HdfsTokenRequest, context: grpc.ServicerContext) -> pb.HdfsTokenReply:
        shown = dict(context.invocation_metadata())["isonomy-token"]
        return pb.HdfsTokenReply(token=f"for-{shown}", ends_s=time.time() + 100.0)


def test_the_control_plane_that_serves_is_asked_with_the_apps_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_hdfs_token, "read_secret", lambda alias: f"{alias}-secret".encode())
    server = grpc.server(futures.ThreadPoolExecutor(1))
    agent_pb2_grpc.add_ArbiterServicer_to_server(Arbiter(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        token, ends_s = own_hdfs_token.ask({"ISONOMY_ARBITER": f"127.0.0.1:1,127.0.0.1:{port}"})
        assert token == "for-isonomy.token-secret"
        assert ends_s > time.time()
        with pytest.raises(NoToken, match=r"127\.0\.0\.1:1: "):
            own_hdfs_token.ask({"ISONOMY_ARBITER": "127.0.0.1:1"})
        with pytest.raises(NoToken, match="ISONOMY_ARBITER is not set"):
            own_hdfs_token.ask({})
    finally:
        server.stop(0)


def test_the_containers_token_is_known_with_its_life(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(TOKENS))
    found = own_hdfs_token.of_container()
    assert found is own_hdfs_token.of_container(), "one for all clients of the process"
    assert found is not None
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "none"))
    assert own_hdfs_token.of_container() is None
