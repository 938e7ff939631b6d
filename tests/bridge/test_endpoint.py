"""The plugin's requests: repeated ones, ones from before a restart of either side, and immediate answers."""

import json
import math
import threading
import time

import pytest

from pycontrol.bridge.endpoint import RESEND_S, RESULT_S, BridgeEndpoint
from pycontrol.model.events import (
    AskChanged,
    ClusterLost,
    ClusterSnapshot,
    ClusterTime,
    DirectiveDone,
    Event,
    Kill,
    NodeDown,
)
from pycontrol.runtime.driver import Overloaded
from pycontrol.wire.v1 import bridge_pb2 as pb


class Plugin:
    """A plugin, an Arbiter that records its events, and the endpoint between them."""

    def __init__(self) -> None:
        self.events: list = []
        self.room = 1_000_000
        self.queries: list = []
        self.now_s = 1000.0
        self.settled = 0
        self.endpoint = BridgeEndpoint(
            self.submit, self.route, self.settle, lost_after_s=6.0, clock_s=lambda: self.now_s
        )
        self.epoch, self.request_id, self.seq = "e1", 0, 0

    def submit(self, event) -> None:
        if not self.room:
            raise Overloaded("full")
        self.room -= 1
        self.events.append(event)

    def settle(self) -> None:
        self.settled += 1

    def route(self, method, path, params, user, admin, viewable):
        self.queries.append((method, path, params, user, admin))
        if path == "broken":
            raise RuntimeError("oops")
        if path == "page":
            return 200, {"content_type": "text/html", "text": "<p>", "headers": {"Cache-Control": "no-store"}}
        return 200, {"n": len(self.queries), "loss": math.nan}

    def request(self, **body) -> pb.Request:
        self.request_id += 1
        return pb.Request(plugin_epoch=self.epoch, id=self.request_id, **body)

    def ask(self, **body) -> pb.Response:
        request = self.request(**body)
        response = self.endpoint.handle(request)
        assert response.id == request.id
        return response

    def hello(self, last_seq: int = 0) -> pb.Response:
        self.seq = last_seq
        return self.ask(hello=pb.Hello(snapshot=pb.Snapshot(last_seq=last_seq, ready=True), plugin_version="1"))

    def event(self, **kind) -> pb.Event:
        self.seq += 1
        kind = kind or {"node_down": pb.NodeDown(node_id=f"n{self.seq}:1")}
        return pb.Event(seq=self.seq, **kind)

    def poll(self, wait_ms: int = 0, received: tuple[str, ...] = ()) -> list[str]:
        response = self.ask(poll=pb.Poll(wait_ms=wait_ms, received=received))
        assert response.HasField("directives")
        return [d.id for d in response.directives.directives]


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


def _nodes(plugin: Plugin) -> list[str]:
    return [e.node_id for e in plugin.events if isinstance(e, NodeDown)]


def test_unknown_epoch_must_say_hello(plugin: Plugin) -> None:
    assert plugin.ask(events=pb.Events(events=[plugin.event()])).hello_required
    assert plugin.ask(poll=pb.Poll()).hello_required
    assert plugin.events == []
    assert plugin.hello().ack.last_seq == 0
    assert plugin.events == [ClusterLost(), ClusterSnapshot(True, (), (), (), ())]
    assert plugin.endpoint.connected
    plugin.epoch = "e2"
    assert plugin.ask(poll=pb.Poll()).hello_required


def test_hello_repeated_under_its_id_is_taken_once(plugin: Plugin) -> None:
    request = plugin.request(hello=pb.Hello(snapshot=pb.Snapshot(last_seq=4)))
    assert plugin.endpoint.handle(request).ack.last_seq == 4
    assert plugin.endpoint.handle(request).ack.last_seq == 4
    assert sum(isinstance(e, ClusterSnapshot) for e in plugin.events) == 1


def test_events_are_taken_once_and_in_order(plugin: Plugin) -> None:
    plugin.hello(last_seq=2)
    old = pb.Event(seq=2, node_down=pb.NodeDown(node_id="old:1"))
    three, four = plugin.event(), plugin.event()
    assert plugin.ask(events=pb.Events(events=[old, three])).ack.last_seq == 3
    assert plugin.ask(events=pb.Events(events=[three, four])).ack.last_seq == 4
    assert _nodes(plugin) == ["n3:1", "n4:1"]


def test_the_clusters_time_precedes_the_events_sent_at_it(plugin: Plugin) -> None:
    hello = pb.Hello(snapshot=pb.Snapshot(last_seq=1, ready=True))
    plugin.endpoint.handle(pb.Request(plugin_epoch=plugin.epoch, id=1, time_ms=5000, hello=hello))
    events = pb.Events(events=[pb.Event(seq=n, ready=pb.Ready()) for n in (1, 2, 3)])
    plugin.endpoint.handle(pb.Request(plugin_epoch=plugin.epoch, id=2, time_ms=6500, events=events))
    plugin.endpoint.handle(pb.Request(plugin_epoch=plugin.epoch, id=3, time_ms=7000, events=events))
    kinds = [e.at_s if isinstance(e, ClusterTime) else type(e).__name__ for e in plugin.events]
    assert kinds == ["ClusterLost", 5.0, "ClusterSnapshot", 6.5, "ClusterReady", "ClusterReady"]


def test_unreadable_event_is_skipped_and_does_not_stop_the_others(plugin: Plugin) -> None:
    plugin.hello()
    nameless = plugin.event(node_down=pb.NodeDown())
    assert plugin.ask(events=pb.Events(events=[nameless, plugin.event()])).ack.last_seq == 2
    assert _nodes(plugin) == ["n2:1"]


def test_under_overload_the_taken_events_are_acknowledged(plugin: Plugin) -> None:
    plugin.hello()
    plugin.room = 1
    batch = pb.Events(events=[plugin.event(), plugin.event()])
    response = plugin.ask(events=batch)
    assert response.ack.last_seq == 1
    assert "overloaded" in response.error
    plugin.room = 9
    assert plugin.ask(events=batch).ack.last_seq == 2
    assert _nodes(plugin) == ["n1:1", "n2:1"]


def test_under_overload_a_hello_is_refused_and_the_next_one_is_taken(plugin: Plugin) -> None:
    plugin.room = 0
    assert "overloaded" in plugin.hello().error
    assert plugin.ask(poll=pb.Poll()).hello_required
    plugin.room = 9
    assert not plugin.hello().error


def test_directive_is_repeated_until_its_result(plugin: Plugin) -> None:
    plugin.hello()
    plugin.endpoint.carry_out(Kill("k1", "c1", "over"))
    assert plugin.poll() == ["k1"]
    assert plugin.poll() == []
    plugin.now_s += RESEND_S
    assert plugin.poll() == ["k1"]
    plugin.now_s += RESEND_S
    assert plugin.poll(received=("k1", "unknown")) == []
    for _ in range(round(RESULT_S)):
        plugin.now_s += 1.0
        again = plugin.poll()
    assert again == ["k1"]
    result = plugin.event(directive_result=pb.DirectiveResult(directive_id="k1", ok=True))
    plugin.ask(events=pb.Events(events=[result]))
    assert plugin.events[-1] == DirectiveDone("k1", True)
    plugin.now_s += RESULT_S / 10
    assert plugin.poll() == []


def test_directives_from_before_a_snapshot_are_void(plugin: Plugin) -> None:
    plugin.hello()
    plugin.endpoint.carry_out(Kill("k1", "c1", "over"))
    plugin.epoch = "e2"
    plugin.hello()
    assert plugin.settled == 4, "before each snapshot and after it"
    plugin.endpoint.carry_out(Kill("k2", "c2", "over"))  # one of c1 would replace k1 anyway
    assert plugin.poll() == ["k2"]


def test_long_poll_wakes_immediately_and_ends_in_time() -> None:
    plugin = Plugin()
    endpoint = BridgeEndpoint(plugin.submit, plugin.route, plugin.settle, lost_after_s=3.0)
    plugin.endpoint = endpoint
    plugin.hello()
    delays: list[float] = []

    def carry_out(i: int) -> None:
        delays.append(time.perf_counter())
        endpoint.carry_out(Kill(f"k{i}", "c", ""))

    for i in range(5):
        threading.Timer(0.05, carry_out, [i]).start()
        assert plugin.poll(wait_ms=30_000, received=tuple(f"k{j}" for j in range(i))) == [f"k{i}"]
        delays[-1] = time.perf_counter() - delays[-1]
    assert sorted(delays)[2] < 0.05
    began = time.perf_counter()
    assert plugin.poll(wait_ms=100, received=tuple(f"k{j}" for j in range(5))) == []
    assert 0.09 < time.perf_counter() - began < 1.0


def test_newer_poll_and_hello_end_an_older_poll() -> None:
    plugin = Plugin()
    plugin.endpoint = BridgeEndpoint(plugin.submit, plugin.route, plugin.settle, lost_after_s=30.0)
    plugin.hello()
    answers: list[pb.Response] = []

    def poll(request: pb.Request) -> None:
        answers.append(plugin.endpoint.handle(request))

    older = threading.Thread(target=poll, args=[plugin.request(poll=pb.Poll(wait_ms=9000))])
    older.start()
    while plugin.endpoint.polls < 1:
        time.sleep(0.001)
    plugin.poll()
    older.join(5.0)
    assert answers[0].HasField("directives")
    last = threading.Thread(target=poll, args=[plugin.request(poll=pb.Poll(wait_ms=9000))])
    last.start()
    while plugin.endpoint.polls < 3:
        time.sleep(0.001)
    plugin.epoch = "e2"
    plugin.hello()
    last.join(5.0)
    assert answers[1].hello_required


def test_silence_is_reported_once_and_ends_with_hello(plugin: Plugin) -> None:
    plugin.endpoint.check_lost()
    plugin.hello()
    plugin.events.clear()
    plugin.now_s += 5.0
    plugin.poll()
    plugin.now_s += 5.0
    plugin.endpoint.check_lost()
    assert plugin.events == []
    plugin.now_s += 1.5
    plugin.endpoint.check_lost()
    plugin.endpoint.check_lost()
    assert plugin.events == [ClusterLost()]
    assert not plugin.endpoint.connected
    assert plugin.ask(poll=pb.Poll()).hello_required
    assert not plugin.hello().hello_required


def _query(method: str, path: str) -> pb.Query:
    return pb.Query(method=method, path=path, parameters={"app": "a"}, user="ann", admin=True)


def test_queries_are_routed_even_before_hello(plugin: Plugin) -> None:
    reply = plugin.ask(query=_query("GET", "status")).query_reply
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert json.loads(reply.body) == {"n": 1, "loss": None}
    assert plugin.queries == [("GET", "status", {"app": "a"}, "ann", True)]


def test_a_text_answer_may_bring_headers(plugin: Plugin) -> None:
    reply = plugin.ask(query=_query("GET", "page")).query_reply
    assert (reply.content_type, reply.body, dict(reply.headers)) == (
        "text/html",
        b"<p>",
        {"Cache-Control": "no-store"},
    )


def test_repeated_post_acts_once(plugin: Plugin) -> None:
    request = plugin.request(query=_query("POST", "kill"))
    first = plugin.endpoint.handle(request)
    assert plugin.endpoint.handle(request) == first
    assert len(plugin.queries) == 1
    plugin.ask(query=_query("POST", "kill"))
    assert len(plugin.queries) == 2


def test_failed_query_is_an_answer(plugin: Plugin) -> None:
    reply = plugin.ask(query=_query("GET", "broken")).query_reply
    assert reply.status == 500
    assert "broken" in json.loads(reply.body)["error"]


def test_no_directive_is_dropped_and_the_newest_kill_of_a_container_is_the_only_one(plugin: Plugin) -> None:
    plugin.hello()
    for n in range(25_000):
        plugin.endpoint.carry_out(Kill(f"k{n}", f"c{n % 5_000}", "why"))
    seen: list[str] = []
    while found := plugin.poll(received=tuple(seen)):
        seen += found
    assert sorted(seen) == sorted(f"k{n}" for n in range(20_000, 25_000))
    assert not any(isinstance(e, DirectiveDone) for e in plugin.events)


def test_a_watch_that_fails_once_continues() -> None:
    """Otherwise the plugin's absence would never be reported again."""
    told, failures = threading.Event(), iter([RuntimeError("odd"), ValueError("odder")])

    def submit(event: Event) -> None:
        if isinstance(event, ClusterLost) and endpoint.connected:
            failure = next(failures, None)
            if failure is not None:
                raise failure
            told.set()

    endpoint = BridgeEndpoint(submit, lambda *query: (200, {}), lambda: None, lost_after_s=0.2)
    endpoint.handle(pb.Request(id=1, plugin_epoch="e", hello=pb.Hello()))
    watched = threading.Thread(target=endpoint._watch_plugin, daemon=True)
    watched.start()
    assert told.wait(10)
    endpoint._stopped.set()
    watched.join(10)


def test_a_number_beyond_its_bounds_arrives_as_the_nearest_within(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = []
    endpoint = BridgeEndpoint(events.append, lambda *query: (200, {}), lambda: None)
    endpoint.handle(pb.Request(plugin_epoch="e", id=1, hello=pb.Hello()))
    ask = pb.Ask(attempt_id="a1", app_id="a", gpus=2**32 - 1, count=2**32 - 1)
    endpoint.handle(pb.Request(plugin_epoch="e", id=2, events=pb.Events(events=[pb.Event(seq=1, ask=ask)])))
    (asked,) = (e.ask for e in events if isinstance(e, AskChanged))
    assert (asked.gpus, asked.count) == (1 << 20, 1 << 20)
    assert "Ask.count: must be from 0 to 1048576" in capsys.readouterr().out
