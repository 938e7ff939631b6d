"""The listening end of the bridge: the plugin's `exchange(bytes) -> bytes`, over py4j on loopback.

py4j's callback protocol lets a peer call any method of any pooled Python object. Here there is one object with
one method: everything else is refused, and only the token is read from an unauthenticated peer. py4j's own server ends
silently at the first accept() that fails; this one continues.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hmac
import io
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import structlog
from google.protobuf.message import DecodeError
from py4j import protocol

from pycontrol import secretfile
from pycontrol.wire.v1 import bridge_pb2 as pb

Handler = Callable[[pb.Request], pb.Response]
"""Answers one request; called from one thread for each connection."""

AUTH_S = 5.0
"""A peer that has not authenticated within this time is disconnected."""
AUTH_LINE_MAX = 256
LINE_MAX = 128 * 2**20
"""The longest message, in base64 characters."""
READ_BYTES = 1 << 16
STOP_S = 3.0
BACKLOG = 128
UNKNOWN_MAX = 64
"""The most unauthenticated peers; beyond that the oldest is disconnected, so that they cannot block others."""
KNOWN_MAX = 64
ACCEPT_AGAIN_S = 0.1
SAY_AGAIN_S = 60.0
_CLOSED = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK}
"""Errors of accept() that mean that the listening socket is closed."""

log = structlog.get_logger("isonomy.bridge")


class BridgeError(Exception):
    """The bridge cannot be opened; the message says what to do."""


def bridge_token(path: Path) -> str:
    """The secret shared with the plugin; raises BridgeError."""
    try:
        return secretfile.token(path)
    except secretfile.SecretFileError as e:
        raise BridgeError(f"bridge.token_file: {e}") from e


class BridgeServer:
    """Serves `handler` to plugins that know the token. Port 0 takes a free one; see `port` once started.

    `failed` is called if it can accept no more connections: the process must then restart, because nothing is decided
    without a bridge.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token_file: Path,
        handler: Handler,
        failed: Callable[[BaseException], None] = lambda e: None,
    ) -> None:
        self._host, self._port, self._token_file = host, port, token_file
        self._handler, self._failed = handler, failed
        self._token = ""
        self.listening: socket.socket | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.connections: list[_Connection] = []
        """The open connections, oldest first."""
        self._said_s = -math.inf

    def start(self) -> None:
        """Start to listen; raises BridgeError."""
        self._token = bridge_token(self._token_file)
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self.listening = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
        except OSError as e:
            raise BridgeError(
                f"bridge.port: cannot listen on {self._host}:{self._port} ({e.strerror or e}); "
                "is another control plane running, or is the port taken?"
            ) from None
        accepting = threading.Thread(target=self._run, args=(self.listening,), name="isonomy-bridge", daemon=True)
        accepting.start()

    @property
    def port(self) -> int:
        """The port on which the server listens; raises RuntimeError before `start`."""
        if self.listening is None:
            raise RuntimeError("the bridge has not been started")
        return int(self.listening.getsockname()[1])

    def stop(self) -> None:
        """Close the port and all connections; requests in progress get no answer."""
        self._stopping.set()
        if self.listening is None:
            return
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        with self._lock:
            left = list(self.connections)
        for connection in left:
            connection.cut()
        end_s = time.monotonic() + STOP_S
        for connection in left:
            if connection is not threading.current_thread():
                connection.join(max(0.0, end_s - time.monotonic()))

    # ---- taking connections

    def _run(self, listening: socket.socket) -> None:
        try:
            while not self._stopping.is_set():
                self._accept(listening)
        except Exception as e:
            if not self._stopping.is_set():
                log.exception("the bridge accepts no more connections")
                self._failed(e)

    def _accept(self, listening: socket.socket) -> None:
        """Accept one connection; a lack of descriptors, memory or threads is only logged."""
        try:
            peer, _ = listening.accept()
        except OSError as e:
            if e.errno in _CLOSED:
                raise
            self._say_rarely("no connection can be accepted; the bridge keeps trying", e)
            self._stopping.wait(ACCEPT_AGAIN_S)
            return
        try:
            self._take(peer)
        except (OSError, RuntimeError) as e:  # no thread can be started
            self._say_rarely("a connection cannot be served", e)
            peer.close()

    def _take(self, peer: socket.socket) -> None:
        connection = _Connection(peer, self._token, self._handler, self._became_known, self._gone, self._say_rarely)
        with self._lock:
            unknown = [c for c in self.connections if not c.known]
            self.connections.append(connection)
        if len(unknown) >= UNKNOWN_MAX:
            unknown[0].cut()
            self._gone(unknown[0])
            self._say_rarely("too many peers without the token; the oldest is disconnected", f"at most {UNKNOWN_MAX}")
        try:
            connection.start()
        except RuntimeError:
            self._gone(connection)
            raise

    def _became_known(self, connection: _Connection) -> None:
        """Bound the authenticated connections by closing the longest idle: a restarted plugin leaves old ones open."""
        with self._lock:
            idle = [c for c in self.connections if c.known and c is not connection and c.idle_since_s is not None]
            known = sum(c.known for c in self.connections)
        if known > KNOWN_MAX and idle:
            min(idle, key=lambda c: c.idle_since_s or 0.0).cut()

    def _gone(self, connection: _Connection) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self.connections.remove(connection)

    def _say_rarely(self, what: str, why: object) -> None:
        if time.monotonic() > self._said_s + SAY_AGAIN_S:
            self._said_s = time.monotonic()
            log.error(what, why=str(why))


class _Incoming(io.RawIOBase):
    """A peer's bytes; while `deadline_s` (of time.monotonic) is set, no read lasts beyond it."""

    def __init__(self, peer: socket.socket, deadline_s: float) -> None:
        self._peer = peer
        self.deadline_s: float | None = deadline_s

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read available bytes, waiting for at least one; raises TimeoutError."""
        if self.deadline_s is not None:
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the token did not arrive in time")
            self._peer.settimeout(left_s)
        return self._peer.recv_into(buffer)


class _Connection(threading.Thread):
    """One connection: authentication by token, then calls of exchange() one by one."""

    def __init__(
        self,
        peer: socket.socket,
        token: str,
        handler: Handler,
        became_known: Callable[[_Connection], None],
        gone: Callable[[_Connection], None],
        say_rarely: Callable[[str, object], None],
    ) -> None:
        super().__init__(name="isonomy-bridge-peer", daemon=True)
        self._peer, self._token, self._handler = peer, token, handler
        self._became_known, self._gone, self._say_rarely = became_known, gone, say_rarely
        self.known = False
        """Whether the peer has authenticated."""
        self.idle_since_s: float | None = None
        """Since when it waits for a call; None during a call."""

    def cut(self) -> None:
        """Close the connection, from any thread."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Serve until the peer disconnects or violates the protocol."""
        peer = self._peer
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            incoming = _Incoming(peer, time.monotonic() + AUTH_S)
            stream = io.BufferedReader(incoming, READ_BYTES)
            if not self._authenticated(stream):
                log.warning("a peer without the token was refused")
                return
            self.known, incoming.deadline_s = True, None
            peer.settimeout(None)
            self._became_known(self)
            self.idle_since_s = time.monotonic()
            peer.sendall(protocol.OUTPUT_VOID_COMMAND.encode())
            while self._serve_one(peer, stream):
                self.idle_since_s = time.monotonic()
        except (OSError, ValueError) as e:
            if self.known and isinstance(e, ValueError):
                self._say_rarely("the plugin's request cannot be read; its connection is closed", e)
            log.debug("a connection of the bridge ended", why=str(e))
        finally:
            self._gone(self)
            peer.close()

    def _authenticated(self, stream: BinaryIO) -> bool:
        command = _line(stream, AUTH_LINE_MAX)
        shown = _line(stream, AUTH_LINE_MAX)
        return command == protocol.AUTH_COMMAND_NAME and hmac.compare_digest(shown.encode(), self._token.encode())

    def _serve_one(self, peer: socket.socket, stream: BinaryIO) -> bool:
        """Answer one call; False if the peer has disconnected or violated the protocol."""
        command = _line(stream, LINE_MAX)
        self.idle_since_s = None
        if not command:
            return False
        if command == protocol.END:
            return True  # py4j's Java side ends its authentication with it, its Python side does not
        if command != protocol.CALL_PROXY_COMMAND_NAME:
            log.warning("a peer sent something other than a call; its connection is closed", command=command[:20])
            return False
        object_id, method = _line(stream, LINE_MAX), _line(stream, LINE_MAX)
        parameters: list[str] = []
        while (part := _line(stream, LINE_MAX)) != protocol.END:
            if not part or len(parameters) > 1:
                return False
            parameters.append(part)
        if (object_id, method) != (protocol.ENTRY_POINT_OBJECT_ID, "exchange") or len(parameters) != 1:
            peer.sendall(_failure("only exchange(byte[]) can be called here"))
            return True
        peer.sendall(self._exchange(parameters[0]))
        return True

    def _exchange(self, parameter: str) -> bytes:
        if not parameter.startswith(protocol.BYTES_TYPE):
            return _failure("exchange() takes byte[]")
        try:
            request = pb.Request.FromString(base64.b64decode(parameter[1:], validate=True))
        except (binascii.Error, DecodeError):
            return _failure("the argument of exchange() is not a Request of bridge.proto")
        try:
            response = self._handler(request)
        except Exception:
            log.exception("a request failed", kind=request.WhichOneof("body"))
            response = pb.Response(id=request.id, error="the control plane failed on this request; see its log")
        answer = base64.b64encode(response.SerializeToString()).decode()
        return f"{protocol.RETURN_MESSAGE}{protocol.SUCCESS}{protocol.BYTES_TYPE}{answer}\n".encode()


def _line(stream: Any, at_most: int) -> str:
    """The next line without its end; empty at the end of the stream. Raises ValueError if it is too long."""
    line: bytes = stream.readline(at_most + 1)
    if len(line) > at_most:
        raise ValueError(f"a line of more than {at_most} bytes")
    return line.decode().rstrip("\n")


def _failure(reason: str) -> bytes:
    return f"{protocol.RETURN_MESSAGE}{protocol.ERROR}{protocol.STRING_TYPE}{reason}\n".encode()
