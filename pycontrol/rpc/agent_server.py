"""The gRPC server of the service `Arbiter` of agent.proto, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import grpc
import structlog

from pycontrol.model.events import AgentEffect, Event
from pycontrol.model.topology import Topology
from pycontrol.rpc import agent_messages
from pycontrol.rpc.admission import OWNER_WAIT_S, STREAMS_MAX, WAITING_MAX, Admission, Owners
from pycontrol.rpc.byte_budget import ByteBudget, Limits
from pycontrol.rpc.intake import Intake
from pycontrol.rpc.service import STANDING_BY, ArbiterService, TokenSource
from pycontrol.rpc.sessions import Sessions
from pycontrol.rpc.tokens import Tokens
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc

MESSAGE_MAX_BYTES = 1 << 20
FIRST_MESSAGE_S = 10.0
CONNECTIONS_MAX = 50_000
DESCRIPTORS_LEFT = 256
"""File descriptors reserved for everything but Agents' connections: the bridge, the journal, HDFS."""
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Of a stream that is not read only this much waits here: else a flood fills the memory, and a worker that waits for
    # its turn is read thousands of messages too late.
    ("grpc.http2.lookahead_bytes", 2048),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]

log = structlog.get_logger("isonomy.rpc")


class ServerError(Exception):
    """The server cannot start; the message says why and what to do."""


class TlsFiles(Protocol):
    """PEM files of the server (the section `tls` of isonomy.yaml)."""

    @property
    def cert(self) -> Any:
        """The server's certificate."""

    @property
    def key(self) -> Any:
        """Its private key."""


class AgentServer:
    """The server, and the Arbiter's port to the Agents (AgentPort)."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: TlsFiles | None,
        tokens: Tokens,
        submit: Callable[[Event], None],
        topology: Callable[[], Topology],
        owners: Owners,
        after: Callable[[Callable[[], None]], None],
        *,
        limits: Limits | None = None,
        first_message_s: float = FIRST_MESSAGE_S,
        owner_wait_s: float = OWNER_WAIT_S,
        serving: Callable[[], bool] = lambda: True,
        failed: Callable[[BaseException], None] = lambda e: None,
        hdfs_tokens: TokenSource | None = None,
    ) -> None:
        """`after(done)` calls `done` once all events that were submitted before are handled. `failed` is called if the
        server ends by itself, after which the process must restart."""
        self._failed = failed
        self.host, self.port = host, port
        self._tls = tls
        self._topology = topology
        self._hosts: tuple[Topology | None, Sequence[pb.Host]] = (None, ())
        admission = Admission(tokens, owners, owner_wait_s)
        self.service = ArbiterService(
            admission,
            Sessions(ByteBudget(limits)),
            Intake(after),
            submit,
            topology,
            first_message_s,
            serving,
            hdfs_tokens,
        )
        self._loop = asyncio.new_event_loop()
        self._stopping: asyncio.Event | None = None
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="isonomy-agents", daemon=True)

    def start(self) -> None:
        """Bind the port and serve; raises ServerError."""
        self._thread.start()
        self.port = self._started.result(30.0)

    def stop(self) -> None:
        """End all streams and the server."""
        if self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10.0)

    def send(self, effect: AgentEffect) -> None:
        """Send an effect to its app's Agent, if it is connected; from any thread, never blocks."""
        message = agent_messages.message_of(effect, self._hosts_now)
        try:
            self._loop.call_soon_threadsafe(self.service.sessions.to_agent, effect.app_id, message)
        except RuntimeError:
            log.debug("the server has stopped", app_id=effect.app_id)

    def _hosts_now(self) -> Sequence[pb.Host]:
        """The cluster's machines; made once for all Agents, as thousands take milliseconds."""
        of, hosts = self._hosts
        if (topology := self._topology()) is not of:
            hosts = agent_messages.hosts_of(topology)
            self._hosts = topology, hosts
        return hosts

    def stand_by(self) -> None:
        """End all streams, so that Agents and workers try the other control plane."""
        sessions = self.service.sessions
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(sessions.end_all, grpc.StatusCode.UNAVAILABLE, STANDING_BY)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as e:
            if self._started.done():
                log.exception("the Agents' server ended")
                self._failed(e)
            else:
                self._started.set_exception(e)
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        limit = ("grpc.max_allowed_incoming_connections", connections_max())
        server = grpc.aio.server(options=[*_OPTIONS, limit], maximum_concurrent_rpcs=STREAMS_MAX + WAITING_MAX)
        agent_pb2_grpc.add_ArbiterServicer_to_server(self.service, server)  # type: ignore[no-untyped-call]
        port = self._bind(server)
        await server.start()
        self._started.set_result(port)
        await self._stopping.wait()
        self.service.sessions.end_all(grpc.StatusCode.UNAVAILABLE, "the control plane stops")
        await server.stop(grace=1.0)

    def _bind(self, server: grpc.aio.Server) -> int:
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        try:
            if self._tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as e:
            raise ServerError(
                f"agents.port: {address} cannot be listened on (is it in use?); set another or free it"
            ) from e


def connections_max() -> int:
    """The most connections: the process's file descriptors minus a reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(soft // 2, min(CONNECTIONS_MAX, soft - DESCRIPTORS_LEFT))


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    pems: dict[str, bytes] = {}
    for key, path in (("key", tls.key), ("cert", tls.cert)):
        try:
            with open(path, "rb") as file:
                pems[key] = file.read()
        except OSError as e:
            raise ServerError(f"agents.tls.{key}: {path} cannot be read: {e.strerror}") from e
        if b"-----BEGIN" not in pems[key]:
            raise ServerError(f"agents.tls.{key}: {path} is not a PEM file")
    return grpc.ssl_server_credentials([(pems["key"], pems["cert"])])
