"""The bridge's listening end, called as py4j's Java side does."""

from __future__ import annotations

import errno
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from pycontrol.bridge import server as bridge_server
from pycontrol.bridge.server import BridgeError, BridgeServer, bridge_token
from pycontrol.wire.v1 import bridge_pb2 as pb
from tests.bridge.plugin import Plugin

Serve = Callable[[Callable[[pb.Request], pb.Response]], BridgeServer]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "bridge.token"


@pytest.fixture
def serve(token_file: Path) -> Iterator[Serve]:
    servers: list[BridgeServer] = []

    def start(handler: Callable[[pb.Request], pb.Response]) -> BridgeServer:
        server = BridgeServer("127.0.0.1", 0, token_file, handler)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def echo(request: pb.Request) -> pb.Response:
    return pb.Response(id=request.id, query_reply=pb.QueryReply(body=request.query.body))


def test_answers_requests_of_any_size(serve: Serve, token_file: Path) -> None:
    plugin = Plugin(serve(echo).port, bridge_token(token_file))
    assert plugin.welcome == "!yv"
    for size in (0, 100, 1_000_000):
        request = pb.Request(id=size + 1, query=pb.Query(body=b"\x00\xff" * (size // 2)))
        response = plugin.exchange(request)
        assert (response.id, response.query_reply.body) == (size + 1, request.query.body)
    plugin.close()


def test_an_answer_does_not_wait_for_the_acknowledgement_of_the_one_before(serve: Serve, token_file: Path) -> None:
    """With Nagle's algorithm a large answer would take 40 ms."""
    server = serve(echo)
    plugin = Plugin(server.port, bridge_token(token_file))
    assert plugin.welcome == "!yv"
    (connection,) = server.connections
    assert connection._peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    plugin.close()


def test_a_long_poll_does_not_block_others(serve: Serve, token_file: Path) -> None:
    polling, directive = threading.Event(), threading.Event()

    def handler(request: pb.Request) -> pb.Response:
        if request.HasField("poll"):
            polling.set()
            assert directive.wait(10)
        else:
            directive.set()
        return pb.Response(id=request.id)

    server = serve(handler)
    one, other = (Plugin(server.port, bridge_token(token_file)) for _ in range(2))
    answers: list[pb.Response] = []
    poll = threading.Thread(target=lambda: answers.append(one.exchange(pb.Request(id=1, poll=pb.Poll()))))
    poll.start()
    assert polling.wait(10)
    assert other.exchange(pb.Request(id=2, query=pb.Query())).id == 2
    poll.join(10)
    assert [a.id for a in answers] == [1]


def test_nothing_is_served_without_the_token(serve: Serve, token_file: Path) -> None:
    calls: list[pb.Request] = []
    server = serve(lambda r: calls.append(r) or pb.Response())  # type: ignore[func-returns-value]
    assert Plugin(server.port, "0" * 64).welcome == ""
    plugin = Plugin.__new__(Plugin)
    plugin.socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    plugin.stream = plugin.socket.makefile("rwb")
    assert plugin.ask("c\nt\nexchange\nj\ne\n") == ""
    assert not calls


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("c\nt\n__class__\ne\n", "!xs"),
        ("c\nt\n__init__\nsx\ne\n", "!xs"),
        ("c\np0\nexchange\nj\ne\n", "!xs"),
        ("c\nt\nexchange\nso1\ne\n", "!xs"),
        ("c\nt\nexchange\nj\nj\ne\n", "!xs"),
        ("c\nt\nexchange\nj!!!\ne\n", "!xs"),
        ("c\nt\nexchange\nj/////w==\ne\n", "!xs"),
        ("r\nu\nos\n", ""),
        ("i\njava.io.File\ne\n", ""),
    ],
)
def test_only_exchange_can_be_called(serve: Serve, token_file: Path, call: str, answer: str) -> None:
    calls: list[pb.Request] = []
    server = serve(lambda r: calls.append(r) or pb.Response())  # type: ignore[func-returns-value]
    got = Plugin(server.port, bridge_token(token_file)).ask(call)
    assert got.startswith(answer)
    assert bool(got) == bool(answer)
    assert not calls


def test_a_failing_handler_answers_an_error(serve: Serve, token_file: Path) -> None:
    def handler(request: pb.Request) -> pb.Response:
        raise RuntimeError("secret detail")

    plugin = Plugin(serve(handler).port, bridge_token(token_file))
    response = plugin.exchange(pb.Request(id=7))
    assert response.id == 7
    assert response.error
    assert "secret" not in response.error


def test_stop_cuts_connections_and_frees_the_port(serve: Serve, token_file: Path) -> None:
    server = serve(echo)
    port = server.port
    plugin = Plugin(port, bridge_token(token_file))
    server.stop()
    assert plugin.ask("c\nt\nexchange\nj\ne\n") == ""
    again = BridgeServer("127.0.0.1", port, token_file, echo)
    again.start()
    again.stop()


def test_a_port_in_use_is_one_clear_error(serve: Serve, token_file: Path) -> None:
    port = serve(echo).port
    with pytest.raises(BridgeError, match=rf"bridge.port: cannot listen on 127.0.0.1:{port} .*in use"):
        BridgeServer("127.0.0.1", port, token_file, echo).start()


def test_the_token_is_made_once_for_its_owner_alone(token_file: Path) -> None:
    token = bridge_token(token_file)
    assert len(token) == 64
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert bridge_token(token_file) == token
    token_file.chmod(0o640)
    with pytest.raises(BridgeError, match=r"bridge.token_file: .* mode 0640 .*chmod 600"):
        bridge_token(token_file)
    token_file.chmod(0o600)
    token_file.write_text("short")
    with pytest.raises(BridgeError, match="64 hexadecimal"):
        bridge_token(token_file)


def _greet(port: int, token: str) -> bytes:
    """The answer to a new connection of the plugin."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        try:
            peer.sendall(f"A\n{token}\n".encode())
            return peer.recv(100)
        except ConnectionError:
            return b""


def test_a_connection_that_cannot_be_accepted_does_not_end_the_bridge(
    serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accept() fails while there is no file descriptor left; py4j's own server ends then, for good and silently."""
    before = socket.socket.accept
    failures = iter([errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM])

    def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
        number = next(failures, None)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return before(listening)

    server = serve(echo)
    monkeypatch.setattr(socket.socket, "accept", accept)
    token = bridge_token(token_file)
    for _ in range(3):  # the first one is taken by the accept() that waits already
        assert _greet(server.port, token) == b"!yv\n"
    assert next(failures, None) is None


def test_a_thread_that_cannot_be_started_does_not_end_the_bridge(
    serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(echo)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "start", start)
        assert _greet(server.port, bridge_token(token_file)) == b""
    assert _greet(server.port, bridge_token(token_file)) == b"!yv\n"


def test_a_bridge_that_can_no_longer_listen_reports_it(token_file: Path) -> None:
    told: queue.Queue[BaseException] = queue.Queue()
    server = BridgeServer("127.0.0.1", 0, token_file, echo, told.put)
    server.start()
    assert server.listening is not None
    server.listening.shutdown(socket.SHUT_RDWR)
    assert isinstance(told.get(timeout=10), OSError)
    server.stop()
    assert told.empty()


def test_peers_without_the_token_do_not_block_others(
    serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "UNKNOWN_MAX", 8)
    server, token = serve(echo), bridge_token(token_file)
    plugin = Plugin(server.port, token)
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(40)]
    assert _greet(server.port, token) == b"!yv\n"
    assert plugin.exchange(pb.Request(id=3, query=pb.Query())).id == 3
    assert [peer.recv(1) for peer in idle[:30]] == [b""] * 30, "the oldest are cut off first"
    for peer in idle:
        peer.close()


def test_the_token_has_one_deadline_however_slowly_it_comes(
    serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "AUTH_S", 0.5)
    server = serve(echo)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as peer:
        peer.settimeout(0.1)
        for _ in range(100):  # a byte each tenth of a second, always within a time-out of its own
            try:
                peer.sendall(b"A")
                if peer.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was kept")
    plugin = Plugin(server.port, bridge_token(token_file))
    time.sleep(1.0)
    assert plugin.exchange(pb.Request(id=4, query=pb.Query())).id == 4, "the deadline is the handshake's alone"


def test_a_request_that_is_too_long_is_said_once(
    serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "LINE_MAX", 1000)
    server, token = serve(echo), bridge_token(token_file)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(ConnectionError):
                Plugin(server.port, token).exchange(pb.Request(id=1, query=pb.Query(body=b"x" * 1000)))
    said = [x["why"] for x in logs if x["log_level"] == "error"]
    assert said == ["a line of more than 1000 bytes"]


def test_abandoned_connections_make_room(serve: Serve, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_server, "KNOWN_MAX", 3)
    server, token = serve(echo), bridge_token(token_file)
    plugins = [Plugin(server.port, token) for _ in range(3)]
    plugins[0].exchange(pb.Request(id=1, query=pb.Query()))
    newest = Plugin(server.port, token)
    assert newest.exchange(pb.Request(id=2, query=pb.Query())).id == 2
    assert plugins[0].exchange(pb.Request(id=3, query=pb.Query())).id == 3
    assert plugins[1].stream.readline() == b"", "it was idle for longest"
