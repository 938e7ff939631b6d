"""Bounds of the outboxes and of stored messages."""

import grpc

from pycontrol.model.events import WorkerSteps
from pycontrol.rpc import mailbox as mailboxes
from pycontrol.rpc import sessions, tally
from pycontrol.rpc.byte_budget import ByteBudget, Limits
from pycontrol.rpc.outbox import Stream
from pycontrol.rpc.sessions import Sessions
from pycontrol.wire.v1 import agent_pb2 as pb

APP = "application_1_0001"
REGISTERED = pb.ArbiterMessage(registered=pb.Registered())


def _exit(worker_id: str) -> pb.WorkerMessage:
    return pb.WorkerMessage(worker_id=worker_id, exit=pb.WorkerExit(code=1))


def _progress(worker_id: str, step: int, iter_time_s: float) -> pb.WorkerMessage:
    return pb.WorkerMessage(worker_id=worker_id, progress=pb.WorkerProgress(step=step, iter_time_s=iter_time_s))


def test_a_reader_too_slow_is_cut_off_and_finds_its_messages_later() -> None:
    hub = Sessions()
    slow = Stream[pb.ArbiterMessage](APP, "a1", limit=3)
    hub.agent_up(slow)
    hub.to_agent(APP, REGISTERED)
    for i in range(4):
        hub.from_worker(APP, _exit(f"w{i}"))
    assert slow.ended is not None
    assert slow.ended[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    hub.from_worker(APP, _exit("w4"))
    assert hub.agent_gone(slow)
    again = Stream[pb.ArbiterMessage](APP, "a1")
    hub.agent_up(again)
    hub.to_agent(APP, REGISTERED)
    assert {m.from_worker.worker_id for m in again.unsent()[1:]} == {"w0", "w1", "w2", "w3", "w4"}


def test_stored_messages_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(mailboxes, "KEPT_MAX", 10)
    monkeypatch.setattr(sessions, "APPS_MAX", 3)
    hub = Sessions()
    for i in range(50):
        hub.from_worker(APP, _exit(f"w{i}"))
        hub.to_worker(APP, pb.WorkerCommand(worker_id=f"c{i}"))
    mailbox = hub.mailbox(APP)
    assert [w for w, _ in mailbox.unread] == [f"w{i}" for i in range(40, 50)]
    assert list(mailbox.commands) == [f"c{i}" for i in range(40, 50)]
    for i in range(10):
        worker = Stream[pb.WorkerCommand](f"app{i}", "w")
        hub.worker_up(worker)
        hub.worker_gone(worker, "ended")
    assert list(hub.mail) == ["app7", "app8", "app9"]


def test_unsent_command_waits_for_the_workers_next_stream() -> None:
    hub = Sessions()
    first = Stream[pb.WorkerCommand](APP, "w")
    assert hub.worker_up(first)
    hub.to_worker(APP, pb.WorkerCommand(worker_id="w", stop=pb.Stop(reason="r")))
    hub.worker_gone(first, "broken")
    second = Stream[pb.WorkerCommand](APP, "w")
    assert hub.worker_up(second)
    assert [c.stop.reason for c in second.unsent()] == ["r"]


def test_apps_workers_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(sessions, "WORKERS_MAX", 1)
    hub = Sessions()
    assert hub.worker_up(Stream[pb.WorkerCommand](APP, "w1"))
    assert hub.worker_up(Stream[pb.WorkerCommand](APP, "w1"))
    assert not hub.worker_up(Stream[pb.WorkerCommand](APP, "w2"))


LIMITS = Limits(stream=1000, app=3000, user=6000, in_all=10_000)


def _large(worker_id: str, size: int = 700) -> pb.WorkerMessage:
    return pb.WorkerMessage(worker_id=worker_id, exit=pb.WorkerExit(code=1, message="x" * size))


def _agent(hub: Sessions, app_id: str, user: str, name: str = "a1") -> Stream[pb.ArbiterMessage]:
    stream = Stream[pb.ArbiterMessage](app_id, name, hub.ledger, user)
    hub.agent_up(stream)
    hub.to_agent(app_id, REGISTERED)
    return stream


def test_bytes_that_wait_for_a_stream_are_bounded() -> None:
    hub = Sessions(ByteBudget(LIMITS))
    slow = _agent(hub, APP, "ann")
    for i in range(50):
        hub.from_worker(APP, _large(f"w{i}"))
    assert slow.ended is not None
    assert "too slowly" in slow.ended[1]
    assert hub.ledger.of_app(APP) <= LIMITS.app
    assert hub.agent_gone(slow)
    assert hub.ledger.of_app(APP) <= LIMITS.app
    again = Stream[pb.ArbiterMessage](APP, "a1", hub.ledger, "ann")
    hub.agent_up(again)
    hub.to_agent(APP, REGISTERED)
    assert again.unsent()[1:], "what was kept comes on the next stream"
    assert sum(m.ByteSize() for m in again.unsent()) <= LIMITS.stream


def test_one_users_bytes_do_not_affect_other_users() -> None:
    hub = Sessions(ByteBudget(LIMITS))
    honest = _agent(hub, "ann_1", "ann")
    for k in range(40):
        app = f"mallory_{k}"
        _agent(hub, app, "mallory")
        for i in range(10):
            hub.from_worker(app, _large(f"w{i}"))
    assert hub.ledger.in_all <= LIMITS.user + 100
    hub.from_worker("ann_1", _large("w"))
    assert honest.ended is None
    assert [m.from_worker.worker_id for m in honest.unsent()[1:]] == ["w"]


def test_when_memory_is_full_the_app_with_the_most_is_cut_off() -> None:
    hub = Sessions(ByteBudget(LIMITS))
    agents = {}
    for user in ("m1", "m2", "m3", "m4"):
        agents[user] = _agent(hub, user, user)
        for i in range(10):
            hub.from_worker(user, _large(f"w{i}"))
    honest = _agent(hub, "ann_1", "ann")
    for i in range(3):
        hub.from_worker("ann_1", _large(f"w{i}", 100))
    assert honest.ended is None
    assert len(honest.unsent()) == 4
    assert hub.ledger.in_all <= LIMITS.in_all


def test_no_bytes_are_counted_once_all_streams_are_gone() -> None:
    hub = Sessions(ByteBudget(LIMITS))
    agent = _agent(hub, APP, "ann")
    worker = Stream[pb.WorkerCommand](APP, "w", hub.ledger, "ann")
    assert hub.worker_up(worker)
    for i in range(20):
        hub.from_worker(APP, _large("w", 10 * i))
        hub.to_worker(APP, pb.WorkerCommand(worker_id="w", stop=pb.Stop(reason="r" * i)))
        if not i % 3:
            agent.sent()
            worker.sent()
    second = _agent(hub, APP, "ann", "a2")
    hub.worker_gone(worker, "ended")
    hub.agent_gone(agent)
    hub.agent_gone(second)
    hub.mailbox(APP).clear()
    assert (hub.ledger.in_all, hub.ledger.of_app(APP)) == (0, 0)


def test_what_workers_report_is_noted_for_the_arbiter_whatever_their_agent_says() -> None:
    hub = Sessions()
    hub.to_worker(APP, pb.WorkerCommand(worker_id="w1", start=pb.Start(until_step=500)))  # before it has a stream
    streams = [Stream[pb.WorkerCommand](APP, name) for name in ("w1", "w2")]
    assert all(map(hub.worker_up, streams))
    for step, time_s in ((1, 0.5), (2, -1.0), (3, float("nan")), (-7, 0.25)):
        hub.from_worker(
            APP, pb.WorkerMessage(worker_id="w1", progress=pb.WorkerProgress(step=step, iter_time_s=time_s))
        )
    hub.from_worker(APP, _exit("w2"))
    hub.from_worker("another", _progress("w1", 9, 1.0))
    told = [WorkerSteps("w1", 1, 0.5, 500), *(WorkerSteps("w1", n, t, 500) for n, t in ((2, 0.0), (3, 0.0), (0, 0.25)))]
    assert list(hub.tally.take(APP)) == told
    assert hub.tally.take(APP) == ()
    for step in range(100):
        hub.from_worker(APP, _progress("w2", step, 0.1))
    assert len(hub.tally.take(APP)) == tally.KEPT
    for stream in streams:
        hub.worker_gone(stream, "ended")
    assert not hub.tally._by_app
