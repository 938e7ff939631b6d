"""The gRPC service `Arbiter` of agent.proto, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import structlog

from pycontrol.arbiter.driver import Overloaded
from pycontrol.model.events import AgentEffect, AgentLost, Event
from pycontrol.model.topology import Topology
from pycontrol.rpc import translate
from pycontrol.rpc.admission import OWNER_WAIT_S, STREAMS_MAX, WAITING_MAX, Admission, Owners, Refused
from pycontrol.rpc.sessions import AgentStream, Sessions, Stream, WorkerStream
from pycontrol.rpc.tokens import Claims, Tokens
from pycontrol.rpc.translate import Malformed
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc

TOKEN_KEY = "isonomy-token"
MESSAGE_MAX_BYTES = 1 << 20
FIRST_MESSAGE_S = 10.0
MESSAGES_PER_S = 500.0
MESSAGES_AT_ONCE = 5000.0
RETRY_S = 0.2
STANDING_BY = "this control plane stands by: its ResourceManager is not the active one"
CONNECTIONS_MAX = 50_000
DESCRIPTORS_LEFT = 256
"""File descriptors that connections of Agents leave to all else: the bridge, the journal, HDFS."""
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]

M = TypeVar("M")
Context = grpc.aio.ServicerContext[Any, Any]
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


class Pace:
    """A stream's rate limit: whoever sends faster is read slower."""

    def __init__(self, per_s: float = MESSAGES_PER_S, at_once: float = MESSAGES_AT_ONCE) -> None:
        self._per_s, self._at_once, self._left = per_s, at_once, at_once
        self._at_s = time.monotonic()

    async def take(self) -> None:
        """Waits until one more message may be read."""
        now_s = time.monotonic()
        self._left = min(self._at_once, self._left + (now_s - self._at_s) * self._per_s) - 1.0
        self._at_s = now_s
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


class ArbiterService(agent_pb2_grpc.ArbiterServicer):
    """The two streams: Session of an Agent, Worker of a worker."""

    def __init__(
        self,
        admission: Admission,
        submit: Callable[[Event], None],
        topology: Callable[[], Topology],
        first_message_s: float,
        serving: Callable[[], bool],
    ) -> None:
        self.sessions = Sessions()
        self._serving = serving
        self._admission, self._submit, self._topology = admission, submit, topology
        self._first_message_s = first_message_s

    # ---- an Agent

    async def Session(self, requests: AsyncIterator[pb.AgentMessage], context: Context) -> None:
        """One Agent, from Register to the end of its stream."""
        async with self._admitted(context) as claims:
            await self._session(claims, requests, context)

    async def _session(
        self, claims: Claims, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> None:
        messages = aiter(requests)
        first = await self._first(messages, context)
        if first.WhichOneof("kind") != "register":
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Register")
        if first.register.app_id != claims.app_id:
            why = f"the token is for {claims.app_id}, not for {first.register.app_id[:256]!r}"
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, why)
        try:
            up = translate.agent_up(claims.app_id, claims.user, first.register)
        except Malformed as e:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(e))
        stream: AgentStream = Stream(claims.app_id, up.attempt_id)
        self.sessions.agent_up(stream)
        log.info("Agent registered", app_id=stream.app_id, attempt_id=stream.name)
        try:
            self._hand_over(stream, up)
            await self._serve(stream, context, self._read_agent(stream, messages))
        finally:
            if self.sessions.agent_gone(stream):
                log.info("Agent gone", app_id=stream.app_id, attempt_id=stream.name)
                self._lost(stream.app_id)

    def _hand_over(self, stream: AgentStream, event: Event) -> None:
        try:
            self._submit(event)
        except Overloaded:
            stream.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "the Arbiter is overloaded; connect again")

    def _lost(self, app_id: str) -> None:
        """Tells the Arbiter that the app has no Agent, again while it is overloaded."""
        if app_id in self.sessions.agents:
            return
        try:
            self._submit(AgentLost(app_id))
        except Overloaded:
            asyncio.get_running_loop().call_later(RETRY_S, self._lost, app_id)

    async def _read_agent(self, stream: AgentStream, messages: AsyncIterator[pb.AgentMessage]) -> None:
        pace = Pace()
        async for message in messages:
            await pace.take()
            if message.WhichOneof("kind") == "to_worker":
                if not message.to_worker.worker_id:
                    raise Malformed("to_worker.worker_id is empty")
                self.sessions.to_worker(stream.app_id, message.to_worker)
                continue
            try:
                event = translate.event_of(stream.app_id, message, self._topology().machines)
            except Malformed as e:
                if message.WhichOneof("kind") != "use":
                    raise
                stream.put(translate.use_reply(message.use.use_id, False, str(e)))
                continue
            if event is not None:
                self._hand_over(stream, event)

    # ---- a worker

    async def Worker(self, requests: AsyncIterator[pb.WorkerMessage], context: Context) -> None:
        """One worker: its messages to the Agent of its app, the Agent's commands to it."""
        async with self._admitted(context) as claims:
            await self._worker(claims, requests, context)

    async def _worker(
        self, claims: Claims, requests: AsyncIterator[pb.WorkerMessage], context: Context
    ) -> None:
        messages = aiter(requests)
        first = await self._first(messages, context)
        worker_id = first.worker_id
        if not 0 < len(worker_id) <= translate.ID_MAX_CHARS:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "worker_id is empty or too long")
        stream: WorkerStream = Stream(claims.app_id, worker_id)
        if not self.sessions.worker_up(stream):
            why = f"{claims.app_id} has too many workers connected"
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self.sessions.from_worker(claims.app_id, first)
        try:
            await self._serve(stream, context, self._read_worker(stream, messages))
        finally:
            self.sessions.worker_gone(stream, stream.ended[1] if stream.ended else "its stream ended")

    async def _read_worker(self, stream: WorkerStream, messages: AsyncIterator[pb.WorkerMessage]) -> None:
        pace = Pace()
        async for message in messages:
            await pace.take()
            if message.worker_id != stream.name:
                raise Malformed(f"worker_id changed within the stream of {stream.name}")
            self.sessions.from_worker(stream.app_id, message)

    # ---- both

    @contextlib.asynccontextmanager
    async def _admitted(self, context: Context) -> AsyncIterator[Claims]:
        """Whose stream it is, as long as it is open; a stream that may not be is ended here."""
        if not self._serving():
            await _abort(context, grpc.StatusCode.UNAVAILABLE, STANDING_BY)
        metadata = context.invocation_metadata() or ()
        token = next((value for key, value in metadata if key == TOKEN_KEY), "")
        text = token.decode("ascii", "replace") if isinstance(token, bytes) else token
        if not text:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, f"the metadata key {TOKEN_KEY} is missing")
        try:
            async with self._admission.stream(text) as claims:
                yield claims
        except Refused as e:
            log.warning("a stream was refused", peer=context.peer(), why=str(e))
            await _abort(context, e.code, str(e))

    async def _first(self, messages: AsyncIterator[M], context: Context) -> M:
        try:
            return await asyncio.wait_for(anext(messages), self._first_message_s)
        except TimeoutError:
            why = f"nothing came within {self._first_message_s:g} s"
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, why)
        except StopAsyncIteration:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the stream ended without a message")

    async def _serve(self, stream: Stream[M], context: Context, reading: Awaitable[None]) -> None:
        """Reads and writes until the peer ends the stream or stream.end() is called."""
        reader = asyncio.ensure_future(reading)
        others = [asyncio.ensure_future(_write(stream, context)), asyncio.ensure_future(stream.until_ended())]
        try:
            await asyncio.wait([reader, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, *others):
                task.cancel()
            ends = await asyncio.gather(reader, *others, return_exceptions=True)
        if isinstance(ends[0], Malformed):
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, str(ends[0]))
        if stream.ended is not None:
            log.warning("a stream was ended", app_id=stream.app_id, name=stream.name, why=stream.ended[1])
            await _abort(context, *stream.ended)


async def _write(stream: Stream[M], context: Context) -> None:
    while True:
        message = await stream.peek()
        await context.write(message)
        stream.sent()


async def _abort(context: Context, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise AssertionError("abort() raises")


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
        *,
        first_message_s: float = FIRST_MESSAGE_S,
        owner_wait_s: float = OWNER_WAIT_S,
        serving: Callable[[], bool] = lambda: True,
        failed: Callable[[BaseException], None] = lambda e: None,
    ) -> None:
        """`failed` is told if the server ends by itself: the process is to end, too, and be started again."""
        self._failed = failed
        self.host, self.port = host, port
        self._tls = tls
        self._topology = topology
        admission = Admission(tokens, owners, owner_wait_s)
        self._service = ArbiterService(admission, submit, topology, first_message_s, serving)
        self._loop = asyncio.new_event_loop()
        self._stopping: asyncio.Event | None = None
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="isonomy-agents", daemon=True)

    def start(self) -> None:
        """Binds the port and serves; ServerError where it cannot."""
        self._thread.start()
        self.port = self._started.result(30.0)

    def stop(self) -> None:
        """Ends all streams and the server."""
        if self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10.0)

    def send(self, effect: AgentEffect) -> None:
        """Sends an effect to its app's Agent; from any thread, never blocks; dropped where there is none."""
        message = translate.message_of(effect, self._topology())
        try:
            self._loop.call_soon_threadsafe(self._service.sessions.to_agent, effect.app_id, message)
        except RuntimeError:
            log.debug("the server has stopped", app_id=effect.app_id)

    def stand_by(self) -> None:
        """Ends all streams: Agents and workers try the other control plane."""
        sessions = self._service.sessions
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
        agent_pb2_grpc.add_ArbiterServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        port = self._bind(server)
        await server.start()
        self._started.set_result(port)
        await self._stopping.wait()
        self._service.sessions.end_all(grpc.StatusCode.UNAVAILABLE, "the control plane stops")
        await server.stop(grace=1.0)

    def _bind(self, server: grpc.aio.Server) -> int:
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        try:
            if self._tls is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as e:
            raise ServerError(
                f"agents.port: {address} cannot be listened on (is it in use?); set another or stop who has it"
            ) from e


def connections_max() -> int:
    """How many connections are taken: what descriptors there are, less a reserve."""
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

