"""The two streams of agent.proto: Session of an Agent, Worker of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import grpc
import structlog

from pycontrol.model.events import AgentLost, Event, ProgressReported, RhoReported
from pycontrol.model.topology import Topology
from pycontrol.rpc import agent_messages, relayed
from pycontrol.rpc.admission import Admission, StreamRefused
from pycontrol.rpc.intake import RETRY_S, STREAM_BYTES, Intake, RateLimiter
from pycontrol.rpc.message_checks import Malformed
from pycontrol.rpc.outbox import Sized, Stream
from pycontrol.rpc.sessions import AgentStream, Sessions, WorkerStream
from pycontrol.rpc.tokens import TokenClaims
from pycontrol.runtime.driver import Overloaded
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc

TOKEN_KEY = "isonomy-token"
Token = tuple[str, float]
"""An HDFS token in WebHDFS's form, and its expiry in Unix seconds."""
TokenSource = Callable[[str, str], Token]
"""Returns a new token for an app of a user; blocks; from any thread. Raises NoHdfsToken."""
APPS_READ = 10_000
"""Apps of which the rate of reports is remembered: it holds for all streams that an Agent opens."""
STANDING_BY = "this control plane stands by: its ResourceManager is not the active one"

M = TypeVar("M", bound=Sized)
Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger("isonomy.rpc")


class NoHdfsToken(Exception):
    """HDFS gave no token; the message is one line."""


class ArbiterService(agent_pb2_grpc.ArbiterServicer):
    """The two streams: Session of an Agent, Worker of a worker."""

    def __init__(
        self,
        admission: Admission,
        sessions: Sessions,
        intake: Intake,
        submit: Callable[[Event], None],
        topology: Callable[[], Topology],
        first_message_s: float,
        serving: Callable[[], bool],
        hdfs_tokens: TokenSource | None = None,
    ) -> None:
        self.sessions, self._hdfs_tokens = sessions, hdfs_tokens
        self._serving, self.intake = serving, intake
        self.admission, self._submit, self._topology = admission, submit, topology
        self._first_message_s = first_message_s
        self._reports_of = lru_cache(APPS_READ)(lambda app_id: RateLimiter())
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        """By user: held while HDFS is asked for a token of its."""

    # ---- an Agent

    async def Session(self, requests: AsyncIterator[pb.AgentMessage], context: Context) -> None:
        """Serve one Agent, from Register to the end of its stream."""
        async with self._admitted(context) as claims:
            await self._session(claims, requests, context)

    async def _session(self, claims: TokenClaims, requests: AsyncIterator[pb.AgentMessage], context: Context) -> None:
        messages = aiter(requests)
        first = await self._first(claims.user, messages, context)
        if first.WhichOneof("kind") != "register":
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Register")
        if first.register.app_id != claims.app_id:
            why = f"the token is for {claims.app_id}, not for {first.register.app_id[:256]!r}"
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, why)
        try:
            up = agent_messages.agent_up(claims.app_id, claims.user, first.register)
        except Malformed as e:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(e))
        stream: AgentStream = Stream(claims.app_id, up.attempt_id, self.sessions.ledger, claims.user)
        self.sessions.agent_up(stream)
        log.info("Agent registered", app_id=stream.app_id, attempt_id=stream.name)
        try:
            self._hand_over(stream, up)
            self.intake.submitted(claims.user, first.ByteSize())
            await self._serve(stream, context, self._read_agent(stream, claims.user, messages))
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
        """Tell the Arbiter that the app has no Agent; retries while it is overloaded."""
        if app_id in self.sessions.agents:
            return
        try:
            self._submit(AgentLost(app_id))
        except Overloaded:
            asyncio.get_running_loop().call_later(RETRY_S, self._lost, app_id)

    async def _read_agent(self, stream: AgentStream, user: str, messages: AsyncIterator[pb.AgentMessage]) -> None:
        async for message in messages:
            kind, size = message.WhichOneof("kind"), message.ByteSize()
            await self.intake.turn(user, size)
            if kind == "progress":
                await self._reports_of(stream.app_id).take()
            if kind == "to_worker":
                self.sessions.to_worker(stream.app_id, relayed.worker_command(message.to_worker))
                continue
            await self.intake.room(user)
            try:
                event = agent_messages.event_of(stream.app_id, message, self._topology().machines)
            except Malformed as e:
                if kind != "use":
                    raise
                stream.put(agent_messages.use_reply(message.use.use_id, False, str(e)))
                continue
            if event is not None:
                if isinstance(event, RhoReported | ProgressReported):
                    event = dataclasses.replace(event, steps=self.sessions.tally.take(stream.app_id))
                self._hand_over(stream, event)
                self.intake.submitted(user, size)

    # ---- a worker

    async def Worker(self, requests: AsyncIterator[pb.WorkerMessage], context: Context) -> None:
        """Serve one worker: relay its messages to its app's Agent, and the Agent's commands to it."""
        async with self._admitted(context) as claims:
            await self._worker(claims, requests, context)

    async def _worker(self, claims: TokenClaims, requests: AsyncIterator[pb.WorkerMessage], context: Context) -> None:
        messages = aiter(requests)
        first = await self._first(claims.user, messages, context)
        try:
            first = relayed.worker_message(first)
        except Malformed as e:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(e))
        worker_id = first.worker_id
        stream: WorkerStream = Stream(claims.app_id, worker_id, self.sessions.ledger, claims.user)
        if not self.sessions.worker_up(stream):
            why = f"{claims.app_id} has too many workers connected"
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self.sessions.from_worker(claims.app_id, first)
        try:
            await self._serve(stream, context, self._read_worker(stream, claims.user, messages))
        finally:
            self.sessions.worker_gone(stream, stream.ended[1] if stream.ended else "its stream ended")

    async def _read_worker(self, stream: WorkerStream, user: str, messages: AsyncIterator[pb.WorkerMessage]) -> None:
        async for message in messages:
            await self.intake.turn(user, message.ByteSize())
            if message.worker_id != stream.name:
                raise Malformed(f"worker_id changed within the stream of {stream.name}")
            self.sessions.from_worker(stream.app_id, relayed.worker_message(message))

    # ---- both

    async def HdfsToken(self, request: pb.HdfsTokenRequest, context: Context) -> pb.HdfsTokenReply:
        """Return a new HDFS token of the app's user."""
        async with self._admitted(context) as claims:
            if self._hdfs_tokens is None:
                await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, "this control plane renews no HDFS tokens")
            lock = self._asking.setdefault(claims.user, asyncio.Lock())
            await lock.acquire()  # a user's apps wait for each other, and not in threads that other users need
            loop = asyncio.get_running_loop()
            asked = loop.run_in_executor(None, self._hdfs_tokens, claims.app_id, claims.user)

            def over(task: asyncio.Future[Token]) -> None:
                lock.release()
                if not task.cancelled():
                    task.exception()  # read, or asyncio would log it where nobody waits any more

            asked.add_done_callback(over)
            try:
                token, ends_s = await asyncio.shield(asked)  # the thread goes on without a caller that has cancelled
            except NoHdfsToken as e:
                log.warning("no HDFS token", app_id=claims.app_id, user=claims.user, why=str(e))
                await _abort(context, grpc.StatusCode.UNAVAILABLE, str(e))
        return pb.HdfsTokenReply(token=token, ends_s=ends_s)

    @contextlib.asynccontextmanager
    async def _admitted(self, context: Context) -> AsyncIterator[TokenClaims]:
        """Context manager with the claims of an admitted stream; aborts a stream that is not admitted."""
        if not self._serving():
            await _abort(context, grpc.StatusCode.UNAVAILABLE, STANDING_BY)
        metadata = context.invocation_metadata() or ()
        token = next((value for key, value in metadata if key == TOKEN_KEY), "")
        text = token.decode("ascii", "replace") if isinstance(token, bytes) else token
        if not text:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, f"the metadata key {TOKEN_KEY} is missing")
        try:
            async with self.admission.stream(text) as claims:
                await self.intake.turn(claims.user, STREAM_BYTES)
                yield claims
        except StreamRefused as e:
            log.warning("a stream was refused", peer=context.peer(), why=str(e))
            await _abort(context, e.code, str(e))

    async def _first(self, user: str, messages: AsyncIterator[M], context: Context) -> M:
        try:
            first = await asyncio.wait_for(anext(messages), self._first_message_s)
            await self.intake.turn(user, first.ByteSize())
            return first
        except TimeoutError:
            why = f"nothing arrived within {self._first_message_s:g} s"
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, why)
        except StopAsyncIteration:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the stream ended without a message")

    async def _serve(self, stream: Stream[M], context: Context, reading: Awaitable[None]) -> None:
        """Read and write until the peer ends the stream or `stream.end` is called."""
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
        elif isinstance(ends[0], Exception):  # not an end of the peer's: the app reconnects
            log.error("a stream failed", app_id=stream.app_id, name=stream.name, exc_info=ends[0])
            stream.end(grpc.StatusCode.INTERNAL, f"the control plane failed to read it: {type(ends[0]).__name__}")
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
