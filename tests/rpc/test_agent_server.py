"""Agents and workers as real gRPC clients of the server."""

import asyncio
import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from pycontrol.config import Tls
from pycontrol.model.events import (
    AgentDone,
    AgentLost,
    BidReceived,
    SendFinish,
    SendOffer,
    SendRegistered,
    WorkerSteps,
)
from pycontrol.rpc import admission
from pycontrol.rpc import agent_server as server_module
from pycontrol.rpc.admission import Owner
from pycontrol.rpc.agent_server import AgentServer, ServerError
from pycontrol.rpc.intake import STREAM_BYTES
from pycontrol.rpc.service import NoHdfsToken
from pycontrol.wire.v1 import agent_pb2 as pb
from tests.rpc.site import APP, CONTENTION, OTHER, TOKENS, TOPOLOGY, WAIT_S, Peer, Site


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def _progress(step: int, worker_id: str = "w1") -> pb.WorkerMessage:
    return pb.WorkerMessage(worker_id=worker_id, progress=pb.WorkerProgress(step=step))


def _start(worker_id: str, until: int) -> pb.AgentMessage:
    command = pb.WorkerCommand(worker_id=worker_id, start=pb.Start(until_step=until))
    return pb.AgentMessage(to_worker=command)


# ---- who may speak


def test_token_is_needed_and_must_be_the_apps_own(site: Site) -> None:
    assert site.session(token="").code() is grpc.StatusCode.UNAUTHENTICATED
    assert site.session(token="nonsense").code() is grpc.StatusCode.UNAUTHENTICATED
    site.owners[APP] = Owner("ann", time.time() - 5)
    old = TOKENS.issue(APP, "ann", 1, time.time() - 10)
    assert site.session(token=old).code() is grpc.StatusCode.UNAUTHENTICATED
    agent = site.session(token=TOKENS.issue(OTHER, "ann", 60, time.time()))
    agent.send(pb.AgentMessage(register=pb.Register(app_id=APP)))
    assert agent.code() is grpc.StatusCode.PERMISSION_DENIED
    assert site.events.empty()


def test_a_token_issued_before_the_app_existed_does_not_work_for_anothers_app(site: Site) -> None:
    """Ids are sequential: Mallory may ask for a token of the next one, which then is Ann's."""
    agent, worker = site.registered(), site.worker("w1")
    assert agent.kind() == "from_worker"
    forged = TOKENS.issue(APP, "mallory", 3600, time.time() - 60)
    thief = site.session(token=forged)
    thief.send(pb.AgentMessage(register=pb.Register(app_id=APP)))
    thief.send(pb.AgentMessage(done=pb.Done(succeeded=False)))
    assert thief.code() is grpc.StatusCode.PERMISSION_DENIED
    false_worker = Peer(site.stub.Worker, forged)
    site.peers.append(false_worker)
    false_worker.send(pb.WorkerMessage(worker_id="w1", exit=pb.WorkerExit(code=0)))
    assert false_worker.code() is grpc.StatusCode.PERMISSION_DENIED
    agent.send(_start("w1", 3))
    assert worker.get().start.until_step == 3
    assert site.events.empty()


def test_an_app_that_yarn_does_not_know_yet_waits_untouched(site: Site) -> None:
    app = "application_1_0003"
    early = site.session(token=TOKENS.issue(app, "ann", 60, time.time()))
    early.send(pb.AgentMessage(register=pb.Register(app_id=app)))
    mallory = site.session(token=TOKENS.issue(app, "mallory", 60, time.time()))
    mallory.send(pb.AgentMessage(register=pb.Register(app_id=app)))
    _until(lambda: site.server.service.admission.waiting == {"ann": 1, "mallory": 1})
    assert site.events.empty()
    site.owners[app] = Owner("ann", time.time())
    assert mallory.code() is grpc.StatusCode.PERMISSION_DENIED
    assert site.event().user == "ann"
    unknown = site.session(token=TOKENS.issue("application_1_0004", "ann", 60, time.time()))
    assert unknown.code() is grpc.StatusCode.UNAVAILABLE
    assert not site.server.service.admission.waiting


def test_streams_that_wait_or_are_open_are_bounded_by_user(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAITING_PER_USER", 1)
    monkeypatch.setattr(admission, "STREAMS_PER_USER", 1)
    app = "application_1_0003"
    first, second = (site.session(token=TOKENS.issue(app, "bob", 60, time.time())) for _ in range(2))
    ends = {first.code(), second.code()}
    assert ends == {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    site.registered()
    assert site.worker().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    site.owners[OTHER] = Owner("carol", 0.0)
    carol = site.session(token=TOKENS.issue(OTHER, "carol", 60, time.time()))
    carol.send(pb.AgentMessage(register=pb.Register(app_id=OTHER)))
    assert site.event().app_id == OTHER


def test_a_token_lives_as_long_as_its_app(site: Site) -> None:
    """An Agent, a worker or an AM attempt of an app older than any token's life connects again."""
    site.owners[APP] = Owner("ann", time.time() - 30 * 86400)
    old = TOKENS.issue(APP, "ann", 7 * 86400, time.time() - 31 * 86400)
    agent = site.session(token=old)
    agent.send(pb.AgentMessage(register=pb.Register(app_id=APP)))
    assert site.event().app_id == APP
    worker = Peer(site.stub.Worker, old)
    site.peers.append(worker)
    worker.send(pb.WorkerMessage(worker_id="w1", ready=pb.WorkerReady(host="n1")))
    _until(lambda: _kept(site) == 1)
    del site.owners[APP]
    assert site.session(token=old).code() is grpc.StatusCode.UNAVAILABLE


def test_first_message_must_be_register_and_come_in_time(site: Site) -> None:
    agent = site.session()
    agent.send(pb.AgentMessage(bid=pb.Bid(round_id="r")))
    assert agent.code() is grpc.StatusCode.INVALID_ARGUMENT
    late = Site(first_message_s=0.2)
    try:
        assert late.session().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        late.close()


def test_message_over_the_size_limit_ends_the_stream(site: Site) -> None:
    agent = site.registered()
    agent.send(pb.AgentMessage(done=pb.Done(message="x" * (2 << 20))))
    assert agent.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert site.event() == AgentLost(APP)


# ---- a session


def test_effects_reach_the_agent_and_its_messages_the_arbiter(site: Site) -> None:
    agent = site.registered()
    site.server.send(SendOffer(APP, "r1", CONTENTION, {"n1": 2}, (), 1.0))
    assert agent.get().offer.round_id == "r1"
    agent.send(pb.AgentMessage(bid=pb.Bid(round_id="r1", rho_nothing=2.0)))
    assert site.event().bid.rho_nothing == 2.0
    agent.send(pb.AgentMessage(done=pb.Done(succeeded=True)))
    assert site.event() == AgentDone(APP, True)
    agent.close()
    assert site.event() == AgentLost(APP)
    site.server.send(SendFinish(APP, "nobody is there"))


def test_only_finish_may_precede_registered(site: Site) -> None:
    agent = site.session()
    agent.send(pb.AgentMessage(register=pb.Register(app_id=APP)))
    site.event()
    site.server.send(SendOffer(APP, "stale", CONTENTION, {}, (), 1.0))
    site.server.send(SendFinish(APP, "killed"))
    site.server.send(SendRegistered(APP, CONTENTION, ()))
    assert [agent.kind(), agent.kind()] == ["finish", "registered"]


def test_malformed_bid_keeps_the_stream_and_malformed_numbers_end_it(site: Site) -> None:
    agent = site.registered()
    agent.send(pb.AgentMessage(bid=pb.Bid(round_id="r1", rho_nothing=float("nan"))))
    received = site.event()
    assert isinstance(received, BidReceived)
    assert received.bid is None
    assert "rho_nothing is nan" in received.problem
    agent.send(pb.AgentMessage(use=pb.Use(use_id="u1", workers=[pb.WorkerPlan(worker_id="w", job_id="j")])))
    reply = agent.get().use_reply
    assert (reply.use_id, reply.accepted) == ("u1", False)
    assert "has no GPU" in reply.reason
    agent.send(pb.AgentMessage(rho=pb.Rho(round_id="r1", rho=-1)))
    assert agent.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert site.event() == AgentLost(APP)


def test_a_second_stream_replaces_the_first_without_losing_messages(site: Site) -> None:
    first = site.registered("a1")
    second = site.registered("a2")
    assert first.code() is grpc.StatusCode.ABORTED
    second.close()
    assert site.event() == AgentLost(APP)
    assert site.events.empty()


# ---- workers


def test_agent_and_worker_exchange_messages(site: Site) -> None:
    agent = site.registered()
    worker = site.worker()
    assert agent.get().from_worker.ready.port == 7
    agent.send(_start("w1", 40))
    assert worker.get().start.until_step == 40
    worker.send(_progress(3))
    assert agent.get().from_worker.progress.step == 3
    agent.send(pb.AgentMessage(progress=pb.Progress(demand=pb.Demand(gang_gpus=1, gangs=1))))
    assert site.event().steps == (WorkerSteps("w1", 3, 0.0, 40),)
    for saved in (pb.WorkerCheckpoint(step=2, path="c"), pb.WorkerCheckpoint(step=3, problem="disk full")):
        worker.send(pb.WorkerMessage(worker_id="w1", checkpoint=saved))
        assert agent.get().from_worker.checkpoint == saved
    agent.send(pb.AgentMessage(progress=pb.Progress(demand=pb.Demand(gang_gpus=1, gangs=1))))
    (told,) = site.event().steps
    assert told.step == 2, "only complete checkpoints"
    assert abs(told.saved_s - time.time()) < 60
    worker.cut()
    assert agent.get().worker_gone.worker_id == "w1"


def test_worker_of_another_app_is_out_of_reach(site: Site) -> None:
    agent = site.registered()
    site.worker("w1", OTHER)
    mine = site.worker("w2")
    assert agent.get().from_worker.worker_id == "w2"
    agent.send(_start("w1", 1))
    agent.send(_start("w2", 2))
    assert mine.get().start.until_step == 2


def test_changed_worker_id_ends_the_stream(site: Site) -> None:
    agent = site.registered()
    worker = site.worker()
    agent.get()
    worker.send(_progress(1, "w2"))
    assert worker.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "changed" in agent.get().worker_gone.reason


@pytest.mark.parametrize("peer", ["agent", "worker"])
def test_an_unexpected_error_in_reading_ends_that_stream_with_a_reason(
    site: Site, peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no end of the peer's: the status says so, and the peer connects again."""
    agent, worker = site.registered(), site.worker("w1")
    assert agent.kind() == "from_worker"

    def odd(*_: object) -> None:
        raise RuntimeError("odd")

    with monkeypatch.context() as m:
        m.setattr(site.server.service.sessions, "to_worker" if peer == "agent" else "from_worker", odd)
        if peer == "agent":
            agent.send(_start("w1", 3))
            assert agent.code() is grpc.StatusCode.INTERNAL
        else:
            worker.send(_progress(1))
            assert worker.code() is grpc.StatusCode.INTERNAL
    if peer == "agent":
        assert isinstance(site.event(), AgentLost)
    assert site.registered("a2")


def test_command_waits_for_its_worker(site: Site) -> None:
    agent = site.registered()
    agent.send(_start("w1", 1))
    agent.send(_start("w1", 2))
    agent.send(pb.AgentMessage(done=pb.Done()))
    site.event()
    assert site.worker().get().start.until_step == 2


def test_newest_of_each_kind_waits_for_the_agent(site: Site) -> None:
    agent = site.registered()
    live, ended = site.worker("w1"), site.worker("w2")
    assert {agent.get().from_worker.worker_id for _ in range(2)} == {"w1", "w2"}
    agent.close()
    site.event()
    for step in (1, 2, 3):
        live.send(_progress(step))
    ended.send(pb.WorkerMessage(worker_id="w2", exit=pb.WorkerExit(code=75)))
    ended.close()
    live.send(pb.WorkerMessage(worker_id="w1", checkpoint=pb.WorkerCheckpoint(step=3)))
    _until(lambda: _kept(site) == 4)
    again = site.registered("a1")
    got = [again.get() for _ in range(5)]
    by_worker = {w: [_what(m) for m in got if _worker_of(m) == w] for w in ("w1", "w2")}
    assert by_worker == {"w1": ["ready", "progress 3", "checkpoint"], "w2": ["exit", "gone"]}


def test_few_messages_of_a_stream_that_is_not_read_wait_in_the_server(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a worker that waits for its turn tells its newest state, and a flood fills no memory."""
    agent, taken, stop = site.registered(), [0], threading.Event()

    async def never(user: str, size: int) -> None:
        await asyncio.Event().wait()

    def messages() -> Iterator[pb.WorkerMessage]:
        yield pb.WorkerMessage(worker_id="w1", ready=pb.WorkerReady(host="n1"))
        assert agent.kind() == "from_worker"
        monkeypatch.setattr(site.server.service.intake, "turn", never)
        while not stop.is_set():
            taken[0] += 1
            yield _progress(taken[0])

    metadata = [("isonomy-token", TOKENS.issue(APP, "ann", 60, time.time()))]
    call = site.stub.Worker(messages(), metadata=metadata)
    while True:
        before = taken[0]
        if not stop.wait(0.5) and 0 < before == taken[0]:
            break
    call.cancel()
    stop.set()
    assert taken[0] < 1000, "by default 280,000 of these"


def test_agent_that_registers_learns_of_the_live_workers(site: Site) -> None:
    agent = site.registered("a1")
    worker = site.worker("w1")
    worker.send(_progress(5))
    assert [_what(agent.get()) for _ in range(2)] == ["ready", "progress 5"]
    agent.cut()
    site.event()
    second = site.registered("a2")
    assert [_what(second.get()) for _ in range(2)] == ["ready", "progress 5"]


def _kept(site: Site) -> int:
    return len(site.server.service.sessions.mailbox(APP).unread)


def _until(condition) -> None:
    for _ in itertools.takewhile(lambda _: not condition(), range(1000)):
        time.sleep(0.01)
    assert condition()


def _worker_of(message: pb.ArbiterMessage) -> str:
    return message.from_worker.worker_id or message.worker_gone.worker_id


def _what(message: pb.ArbiterMessage) -> str:
    if message.HasField("worker_gone"):
        return "gone"
    kind = message.from_worker.WhichOneof("kind")
    return f"progress {message.from_worker.progress.step}" if kind == "progress" else kind


# ---- the port


def test_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = "127.0.0.1", taken.getsockname()[1]
        server = AgentServer(*at, None, TOKENS, lambda e: None, lambda: TOPOLOGY, lambda x: None, lambda done: done())
        with pytest.raises(ServerError, match=r"agents\.port: .*in use"):
            server.start()


def test_tls(tmp_path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    whose = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", *kind, *whose, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    site = Site(Tls(cert=cert, key=key, ca=cert))
    try:
        site.registered().close()
    finally:
        site.close()


def test_idle_connections_do_not_use_up_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody on the network may connect; a flood neither uses up the descriptors nor cuts existing connections."""
    monkeypatch.setattr(server_module, "connections_max", lambda: 10)
    site = Site()
    try:
        agent = site.registered()
        flood = [socket.create_connection(("127.0.0.1", site.server.port), timeout=10) for _ in range(30)]
        for peer in flood:
            peer.settimeout(0.2)
        closed = sum(_is_closed(peer) for peer in flood)
        assert 20 <= closed < 30
        site.server.send(SendOffer(APP, "r1", CONTENTION, {}, (), 1.0))
        assert agent.get().offer.round_id == "r1"
        for peer in flood:
            peer.close()
        _until(lambda: _reaches(site.server.port))
    finally:
        site.close()


def _is_closed(peer: socket.socket) -> bool:
    """Whether the server closed it; it greets those that it keeps."""
    try:
        while peer.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def _reaches(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        peer.settimeout(0.2)
        return not _is_closed(peer)


def hdfs_token(site: Site, user: str = "ann") -> pb.HdfsTokenReply:
    token = TOKENS.issue(APP, user, 60, time.time())
    metadata = [("isonomy-token", token)]
    return site.stub.HdfsToken(pb.HdfsTokenRequest(), metadata=metadata, timeout=WAIT_S)


def test_an_app_gets_its_own_users_hdfs_token() -> None:
    asked: list[tuple[str, str]] = []

    def give(app_id: str, user: str) -> tuple[str, float]:
        asked.append((app_id, user))
        if len(asked) == 2:
            raise NoHdfsToken("the NameNode is away")
        return "url-string", 99.0

    site = Site(hdfs_tokens=give)
    try:
        reply = hdfs_token(site)
        assert (reply.token, reply.ends_s) == ("url-string", 99.0)
        with pytest.raises(grpc.RpcError, match="the NameNode is away") as raised:
            hdfs_token(site)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError) as raised:
            hdfs_token(site, "mallory")
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert asked == [(APP, "ann")] * 2
    finally:
        site.close()


def test_hdfs_tokens_of_users_do_not_wait_for_each_other() -> None:
    """Mallory's slow requests take one thread, however many there are, and how many are cancelled."""
    answer, asked = threading.Event(), []

    def give(app_id: str, user: str) -> tuple[str, float]:
        asked.append(user)
        if user == "mallory":
            answer.wait(WAIT_S)
        return user, 99.0

    site = Site(hdfs_tokens=give)
    try:
        site.owners[OTHER] = Owner("mallory", time.time() - 5)
        metadata = [("isonomy-token", TOKENS.issue(OTHER, "mallory", 60, time.time()))]
        slow = [site.stub.HdfsToken.future(pb.HdfsTokenRequest(), metadata=metadata) for _ in range(40)]
        _until(lambda: "mallory" in asked)
        for reply in slow[:30]:
            reply.cancel()
        time.sleep(0.1)
        assert hdfs_token(site).token == "ann"
        assert asked.count("mallory") == 1
        answer.set()
        assert {reply.result(WAIT_S).token for reply in slow[30:]} == {"mallory"}
    finally:
        site.close()


def test_opening_streams_in_a_loop_delays_that_user_alone(site: Site) -> None:
    """An Agent that registers again and again is read later; another user's is not."""
    site.owners[OTHER] = Owner("mallory", time.time() - 5)
    turns, before = [], site.server.service.intake.turn

    async def turn(user: str, size: int) -> None:
        turns.append((user, size))
        await before(user, size)

    site.server.service.intake.turn = turn  # type: ignore[method-assign]
    register = pb.AgentMessage(register=pb.Register(app_id=OTHER, attempt_id="m1"))
    for _ in range(3):
        peer = site.session(token=TOKENS.issue(OTHER, "mallory", 60, time.time()))
        peer.send(register)
        assert site.event().app_id == OTHER
    assert turns == [("mallory", STREAM_BYTES), ("mallory", register.ByteSize())] * 3
    turns.clear()
    site.registered()
    assert {user for user, _ in turns} == {"ann"}


def test_a_control_plane_without_a_keytab_gives_no_hdfs_tokens(site: Site) -> None:
    with pytest.raises(grpc.RpcError, match="renews no HDFS tokens") as raised:
        hdfs_token(site)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
