"""The listening end of the bridge: the plugin's `exchange(bytes) -> bytes`, over py4j on loopback.

py4j's callback protocol lets a peer call any method of any pooled Python object. Here there is one object with
one method: everything else is refused, and nothing is read from a peer that has not shown the token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import secrets
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import structlog
from google.protobuf.message import DecodeError
from py4j import protocol
from py4j.java_gateway import CallbackConnection, CallbackServer, CallbackServerParameters, PythonProxyPool
from py4j.protocol import Py4JNetworkError

from pycontrol.wire.v1 import bridge_pb2 as pb

Handler = Callable[[pb.Request], pb.Response]
"""Answers one request; called from one thread for each connection."""

AUTH_S = 5.0
"""A peer that has not shown the token within this time is cut off."""
AUTH_LINE_MAX = 256
LINE_MAX = 128 * 2**20
"""The longest message, in base64 characters."""
STOP_S = 3.0
CONNECTIONS_MAX = 128

log = structlog.get_logger("isonomy.bridge")


class BridgeError(Exception):
    """The bridge cannot be opened; the message says what to do."""


def bridge_token(path: Path) -> str:
    """The secret shared with the plugin, made on first use: 64 hexadecimal characters in a file of mode 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(fd, "w") as f:
            f.write(secrets.token_hex(32) + "\n")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise BridgeError(f"bridge.token_file: others may read {path} (mode {mode:04o}); set its mode to 0600")
    token = path.read_text().strip()
    if len(token) != 64 or any(c not in "0123456789abcdef" for c in token):
        raise BridgeError(
            f"bridge.token_file: {path} does not hold 64 hexadecimal characters; remove it to have a new one made"
        )
    return token


class BridgeServer:
    """Serves `handler` to plugins that know the token. Port 0 takes a free one; see `port` once started."""

    def __init__(self, host: str, port: int, token_file: Path, handler: Handler) -> None:
        self._host, self._port, self._token_file, self._handler = host, port, token_file, handler
        self._server: _Server | None = None

    def start(self) -> None:
        """Begins to listen; raises BridgeError where that is not possible."""
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        server = _Server(self._host, self._port, bridge_token(self._token_file), self._handler)
        try:
            server.start()
        except Py4JNetworkError as e:
            reason = e.__cause__ or e.cause
            raise BridgeError(
                f"bridge.port: cannot listen on {self._host}:{self._port} ({reason}); "
                "is another control plane running, or is the port taken?"
            ) from None
        self._server = server

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._server is None:
            raise RuntimeError("the bridge has not been started")
        return int(self._server.get_listening_port())

    def stop(self) -> None:
        """Closes the port and all connections; requests being answered get no answer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.join_connections(STOP_S)
            self._server = None


class _Server(CallbackServer):  # type: ignore[misc]
    """py4j's callback server without its pool of objects."""

    def __init__(self, host: str, port: int, token: str, handler: Handler) -> None:
        parameters = CallbackServerParameters(
            address=host, port=port, daemonize=True, daemonize_connections=True, auth_token=token
        )
        super().__init__(PythonProxyPool(), None, callback_server_parameters=parameters)
        self._token, self._handler = token, handler

    def start(self) -> None:
        """Listens at once: py4j alone does so a little later, on its own thread."""
        super().start()
        self.server_socket.listen(CONNECTIONS_MAX)

    def _create_connection(self, peer: socket.socket, stream: BinaryIO) -> CallbackConnection:
        return _Connection(self, peer, stream, self._token, self._handler)

    def join_connections(self, timeout_s: float) -> None:
        """Waits for the connections' threads, which end once their handler returns."""
        for connection in list(self.connections):
            if connection is not threading.current_thread():
                connection.join(timeout_s)


class _Connection(CallbackConnection):  # type: ignore[misc]
    """One connection: the token first, then calls of exchange() one after the other."""

    def __init__(
        self, server: _Server, peer: socket.socket, stream: BinaryIO, token: str, handler: Handler
    ) -> None:
        super().__init__(server.pool, stream, peer, None, server.callback_server_parameters, server)
        self._token, self._handler = token, handler
        self._full = sum(c.is_alive() for c in list(server.connections)) >= CONNECTIONS_MAX

    def run(self) -> None:
        """Serves until the peer leaves or does what is not allowed."""
        peer, stream = self.socket, self.input
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._full:
                log.error("too many connections to the bridge; one is refused", at_most=CONNECTIONS_MAX)
                return
            peer.settimeout(AUTH_S)
            if not self._authenticated(stream):
                log.warning("a peer without the token was refused")
                return
            peer.sendall(protocol.OUTPUT_VOID_COMMAND.encode())
            peer.settimeout(None)
            while self._serve_one(peer, stream):
                pass
        except (OSError, ValueError) as e:
            log.debug("a connection of the bridge ended", why=str(e))
        finally:
            self.close()

    def _authenticated(self, stream: BinaryIO) -> bool:
        command = _line(stream, AUTH_LINE_MAX)
        shown = _line(stream, AUTH_LINE_MAX)
        return command == protocol.AUTH_COMMAND_NAME and hmac.compare_digest(shown.encode(), self._token.encode())

    def _serve_one(self, peer: socket.socket, stream: BinaryIO) -> bool:
        """Answers one call; False once the peer has left or strayed from the protocol."""
        command = _line(stream, LINE_MAX)
        if not command:
            return False
        if command == protocol.END:
            return True  # the Java side ends its authentication with it, the Python side does not
        if command != protocol.CALL_PROXY_COMMAND_NAME:
            log.warning("a peer sent what is no call; its connection is closed", command=command[:20])
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
            return _failure("the argument of exchange() is no Request of bridge.proto")
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
