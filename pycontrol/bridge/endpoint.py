"""Answers the plugin's requests: the control plane's end of `exchange` (bridge.proto).

The plugin may repeat any request, and either side may restart at any time. So each event is handled once, by its
sequence number; directives are repeated until the plugin has reported their result; and an unknown plugin must send a
snapshot (Hello) first.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from pycontrol.bridge import bridge_messages
from pycontrol.bridge.bridge_messages import Unreadable
from pycontrol.bridge.turns import Turns
from pycontrol.model import bounds
from pycontrol.model.events import ClusterLost, ClusterTime, Directive, DirectiveDone, Event, Place
from pycontrol.runtime.driver import Overloaded
from pycontrol.wire.v1 import bridge_pb2 as pb

LOST_AFTER_S = 6.0
"""Without an exchange for this long, the plugin counts as away."""
RESEND_S = 1.0
"""When a directive that the plugin has not acknowledged is sent again."""
RESULT_S = 30.0
"""When an acknowledged directive without a result is sent again."""
DIRECTIVES_AT_ONCE = 500
ANSWERS_KEPT = 128
BEYOND_SAID = 3
"""Numbers out of bounds that are logged of one request."""
QUERY_S = 30.0
ROWS_AT_ONCE = 256
OVERLOADED = "the control plane is overloaded; send this again"

Route = Callable[[str, str, Mapping[str, str], str, bool, frozenset[str] | None], tuple[int, Mapping[str, Any]]]
"""(method, path, parameters, user, admin) -> (HTTP status, JSON object, or an object of the keys in TEXT)."""
JSON = "application/json"
TEXT = frozenset({"content_type", "text"})
"""Keys of an answer that is text instead of JSON; it may also have `headers` ({name: value}) for HTTP."""
log = structlog.get_logger("isonomy.bridge")


@dataclass(slots=True)
class _Waiting:
    """A directive without a result, and when to send it (again), in seconds of the endpoint's clock."""

    message: pb.Directive
    about: tuple[str, str] | None = None
    """(kind, container) of a Kill or Preempt; a newer directive with the same value replaces it."""
    due_s: float = 0.0


class BridgeEndpoint:
    """Serves the plugin's requests, and is the Arbiter's port to YARN (ClusterPort).

    `settle` waits until the Arbiter has handled all events that were submitted before. After a snapshot the Arbiter
    decides its placements again, so earlier directives must not reach the plugin.
    """

    def __init__(
        self,
        submit: Callable[[Event], None],
        route: Route,
        settle: Callable[[], None],
        *,
        lost_after_s: float = LOST_AFTER_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._submit, self._route, self._settle = submit, route, settle
        self._lost_after_s, self._clock_s = lost_after_s, clock_s
        self._intake = threading.Lock()
        """Held while events are submitted, so that they keep their order."""
        self._changed = threading.Condition()
        """Guards all fields below."""
        self._epoch = ""
        self._hello_id = 0
        self._greeting = False
        """A snapshot is being submitted: no directive is sent."""
        self._last_seq = 0
        self._heard_s = 0.0
        self.polls = 0
        self.waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._about: dict[tuple[str, str], str] = {}
        """By (kind, container): the id of the waiting directive."""
        self._answers: OrderedDict[tuple[str, int], Future[pb.Response]] = OrderedDict()
        self._stopped = threading.Event()
        self._turns = Turns(self._stopped)
        self._watch = threading.Thread(target=self._watch_plugin, name="isonomy-bridge-watch", daemon=True)
        self.plugin_version = ""
        self.hadoop_version = ""

    def start(self) -> None:
        """Start to watch for the plugin's silence."""
        self._watch.start()

    def stop(self) -> None:
        """Answer waiting polls and stop the watch."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        if self._watch.is_alive():
            self._watch.join(self._lost_after_s)

    @property
    def connected(self) -> bool:
        """Whether the plugin has sent Hello and is not away."""
        with self._changed:
            return bool(self._epoch)

    @property
    def silent_s(self) -> float:
        """Seconds since the plugin's last request; 0 before the first one."""
        with self._changed:
            return self._clock_s() - self._heard_s if self._heard_s else 0.0

    # ---- requests

    def handle(self, request: pb.Request) -> pb.Response:
        """The answer to one request; from any thread."""
        for beyond in bounds.clip(request)[:BEYOND_SAID]:
            log.warning("a number of the plugin is beyond its bounds: the nearest within counts", number=beyond)
        kind = request.WhichOneof("body")
        if kind == "query":
            response = self._query_once(request)
        elif kind == "hello":
            response = self._hello(request)
        elif not self._heard(request.plugin_epoch):
            response = pb.Response(hello_required=True)
        elif kind == "events":
            response = self._events(request)
        elif kind == "poll":
            response = self._poll(request)
        else:
            response = pb.Response(error="a request without a body that this control plane knows")
        response.id = request.id
        return response

    def _heard(self, epoch: str) -> bool:
        with self._changed:
            if not self._epoch or epoch != self._epoch:
                return False
            self._heard_s = self._clock_s()
            return True

    def _hello(self, request: pb.Request) -> pb.Response:
        hello, epoch = request.hello, request.plugin_epoch
        if not epoch:
            return pb.Response(error="Hello without plugin_epoch")
        with self._intake:
            if self._heard(epoch) and 0 < request.id <= self._hello_id:
                return self._ack()
            self._set_greeting(True)
            try:
                self._hand_over(epoch, request.id, request.time_ms, hello.snapshot)
            except Unreadable as e:
                log.error("the plugin's snapshot cannot be read", why=str(e))
                return pb.Response(error=f"the snapshot cannot be read: {e}")
            except (Overloaded, TimeoutError):
                return pb.Response(error=OVERLOADED)
            finally:
                self._set_greeting(False)
            response = self._ack()
        self.plugin_version, self.hadoop_version = hello.plugin_version, hello.hadoop_version
        log.info("the plugin said hello", epoch=epoch, plugin=hello.plugin_version, hadoop=hello.hadoop_version)
        return response

    def _submit_time(self, time_ms: int) -> None:
        if time_ms > 0:
            self._submit(ClusterTime(time_ms / 1000.0))

    def _hand_over(self, epoch: str, request_id: int, time_ms: int, message: pb.Snapshot) -> None:
        """Submit a snapshot: ClusterLost first, to stop placements; then the old directives are dropped."""
        snapshot = bridge_messages.snapshot_of(message)
        self._submit(ClusterLost())
        self._submit_time(time_ms)
        self._settle()
        with self._changed:
            self.waiting.clear()
            self._about.clear()
        self._submit(snapshot)
        with self._changed:
            self._epoch, self._hello_id = epoch, request_id
            self._last_seq = message.last_seq
            self._heard_s = self._clock_s()
        with contextlib.suppress(Overloaded, TimeoutError):  # so that queries after Hello see this cluster
            self._settle()

    def _set_greeting(self, greeting: bool) -> None:
        with self._changed:
            self._greeting = greeting
            self._changed.notify_all()

    def _ack(self) -> pb.Response:
        return pb.Response(ack=pb.Ack(last_seq=self._last_seq))

    def _events(self, request: pb.Request) -> pb.Response:
        """Submit the new events in order; while the Arbiter is behind, the plugin keeps the rest."""
        with self._intake:
            if not self._heard(request.plugin_epoch):
                return pb.Response(hello_required=True)
            time_ms = request.time_ms
            for message in request.events.events:
                if message.seq <= self._last_seq:
                    continue
                try:
                    self._submit_time(time_ms)
                    self._take(message)
                except Overloaded:
                    log.debug("the Arbiter is behind; events wait in the plugin", seq=message.seq)
                    return pb.Response(ack=pb.Ack(last_seq=self._last_seq), error=OVERLOADED)
                self._last_seq, time_ms = message.seq, 0  # told once
            return self._ack()

    def _take(self, message: pb.Event) -> None:
        try:
            event = bridge_messages.event_of(message)
        except Unreadable as e:
            log.error("an event of the plugin cannot be read", seq=message.seq, why=str(e))
            return
        if event is None:
            return
        self._submit(event)
        if isinstance(event, DirectiveDone):
            self._done(event.directive_id)

    # ---- directives

    def carry_out(self, directive: Directive) -> None:
        """Queue a directive for the plugin's next poll; from any thread, never blocks.

        The Arbiter bounds the number of open placements; of other kinds only the newest per container waits.
        """
        message = bridge_messages.directive_to_wire(directive)
        about = None if isinstance(directive, Place) else (type(directive).__name__, directive.container_id)
        with self._changed:
            if about is not None:
                self.waiting.pop(self._about.get(about, ""), None)
                self._about[about] = message.id
            self.waiting[message.id] = _Waiting(message, about)
            self._changed.notify_all()

    def _done(self, directive_id: str) -> None:
        with self._changed:
            waiting = self.waiting.pop(directive_id, None)
            if waiting is not None and waiting.about is not None:
                self._about.pop(waiting.about, None)

    def _poll(self, request: pb.Request) -> pb.Response:
        wait_s = min(request.poll.wait_ms / 1000.0, self._lost_after_s / 3.0)
        with self._changed:
            end_s = self._clock_s() + wait_s
            for directive_id in request.poll.received:
                if directive_id in self.waiting:
                    self.waiting[directive_id].due_s = self._clock_s() + RESULT_S
            self.polls += 1
            this_poll = self.polls
            self._changed.notify_all()
            while True:
                if request.plugin_epoch != self._epoch:
                    return pb.Response(hello_required=True)
                now_s = self._clock_s()
                self._heard_s = now_s
                due = self._due(now_s) if this_poll == self.polls and not self._greeting else []
                over = now_s >= end_s or this_poll != self.polls or self._stopped.is_set()
                if due or over:
                    return pb.Response(directives=pb.Directives(directives=due))
                self._changed.wait(min(end_s, self._next_due_s(now_s)) - now_s)

    def _next_due_s(self, now_s: float) -> float:
        if self._greeting:
            return math.inf
        return min((max(w.due_s, now_s) for w in self.waiting.values()), default=math.inf)

    def _due(self, now_s: float) -> list[pb.Directive]:
        due = []
        for waiting in self.waiting.values():
            if waiting.due_s <= now_s:
                waiting.due_s = now_s + RESEND_S
                due.append(waiting.message)
                if len(due) == DIRECTIVES_AT_ONCE:
                    break
        return due

    # ---- queries

    def _query_once(self, request: pb.Request) -> pb.Response:
        """Answer a query, in its user's turn; a repeated one that changes state gets its first answer again."""
        query = request.query
        turn = self._turns.of(query.user, waits=query.path.strip("/") == "events" and "wait_s" in query.parameters)
        try:
            with contextlib.nullcontext() if query.admin else turn:  # who is trusted with the cluster does not wait
                return self.query(query) if query.method == "GET" or not request.id else self._act_once(request)
        except TimeoutError as e:
            return pb.Response(error=str(e))

    def _act_once(self, request: pb.Request) -> pb.Response:
        key = (request.plugin_epoch, request.id)
        with self._changed:
            first = key not in self._answers
            answer = self._answers.setdefault(key, Future())
            while len(self._answers) > ANSWERS_KEPT:
                self._answers.popitem(last=False)
        if first:
            answer.set_result(self.query(request.query))
        response = pb.Response()
        try:
            response.CopyFrom(answer.result(QUERY_S))
        except TimeoutError:
            response.error = "the same query is still being answered"
        return response

    def query(self, query: pb.Query) -> pb.Response:
        try:
            viewable = frozenset(query.viewable) if query.acls else None
            asked = (query.method, query.path, dict(query.parameters), query.user, query.admin, viewable)
            status, answer = self._route(*asked)
            is_text = answer.keys() - {"headers"} == TEXT
            headers = {str(k): str(v) for k, v in answer.get("headers", {}).items()} if is_text else {}
            content_type = str(answer["content_type"]) if is_text else JSON
            body = str(answer["text"]).encode() if is_text else to_json(answer)
        except Exception:
            log.exception("a query failed", method=query.method, path=query.path)
            status, content_type, headers = 500, JSON, {}
            body = to_json({"error": f"the control plane failed on {query.path}; see its log"})
        reply = pb.QueryReply(status=status, content_type=content_type, body=body, headers=headers)
        return pb.Response(query_reply=reply)

    # ---- the plugin's silence

    def _watch_plugin(self) -> None:
        while not self._stopped.wait(self._lost_after_s / 4.0):
            try:
                self.check_lost()
            except Exception:  # keep the watch alive, or a silent plugin would never be reported
                log.exception("it could not be determined whether the plugin is connected")

    def check_lost(self) -> None:
        """Submit ClusterLost if the plugin has been silent for too long; it must send Hello to return."""
        with self._intake:
            with self._changed:
                silent_s = self._clock_s() - self._heard_s
                if not self._epoch or silent_s < self._lost_after_s:
                    return
            try:
                self._submit(ClusterLost())
            except Overloaded:
                return
            with self._changed:
                self._epoch, self._hello_id = "", 0
                self._changed.notify_all()
        log.warning("the plugin is silent; leases are suspended until it answers", silent_s=round(silent_s, 1))


def to_json(value: Any) -> bytes:
    """The value as JSON bytes; NaN and infinity become null. Between parts of an object's long lists others may go on:
    10,000 rows at once would hold up all threads for 20 ms."""
    if not isinstance(value, dict) or all(type(x) is not list or len(x) <= ROWS_AT_ONCE for x in value.values()):
        return orjson.dumps(value, default=_listed, option=orjson.OPT_NON_STR_KEYS)
    fields = (to_json(key) + b":" + (_rows(x) if type(x) is list else to_json(x)) for key, x in value.items())
    return b"{" + b",".join(fields) + b"}"


def _rows(rows: list[Any]) -> bytes:
    parts = (to_json(rows[k : k + ROWS_AT_ONCE])[1:-1] for k in range(0, len(rows), ROWS_AT_ONCE))
    return b"[" + b",".join(parts) + b"]"


def _listed(value: Any) -> list[Any]:
    if isinstance(value, tuple):  # a named one
        return list(value)
    raise TypeError(type(value).__name__)
