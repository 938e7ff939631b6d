"""Bounds of the outboxes and of what is kept."""

import grpc

from pycontrol.rpc import sessions
from pycontrol.rpc.sessions import Sessions, Stream
from pycontrol.wire.v1 import agent_pb2 as pb

APP = "application_1_0001"
REGISTERED = pb.ArbiterMessage(registered=pb.Registered())


def _exit(worker_id: str) -> pb.WorkerMessage:
    return pb.WorkerMessage(worker_id=worker_id, exit=pb.WorkerExit(code=1))


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


def test_what_is_kept_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(sessions, "KEPT_MAX", 10)
    monkeypatch.setattr(sessions, "APPS_MAX", 3)
    hub = Sessions()
    for i in range(50):
        hub.from_worker(APP, _exit(f"w{i}"))
        hub.to_worker(APP, pb.WorkerCommand(worker_id=f"c{i}"))
    mailbox = hub._mailbox(APP)
    assert [w for w, _ in mailbox.unread] == [f"w{i}" for i in range(40, 50)]
    assert list(mailbox.commands) == [f"c{i}" for i in range(40, 50)]
    for i in range(10):
        worker = Stream[pb.WorkerCommand](f"app{i}", "w")
        hub.worker_up(worker)
        hub.worker_gone(worker, "ended")
    assert list(hub._mail) == ["app7", "app8", "app9"]


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
