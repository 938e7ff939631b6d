"""A user's queries are answered one at a time and take a part of a core; others do not wait for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pycontrol.bridge import turns
from pycontrol.bridge.endpoint import BridgeEndpoint
from pycontrol.bridge.turns import AT_ONCE_S, SHARE, Turns
from pycontrol.wire.v1 import bridge_pb2 as pb

WAIT_S = 30.0


def ask(
    endpoint: BridgeEndpoint,
    user: str,
    path: str = "queue",
    admin: bool = False,
    method: str = "GET",
    id: int = 0,
    **parameters: str,
) -> threading.Thread:
    query = pb.Query(method=method, path=path, user=user, admin=admin, parameters=parameters)
    thread = threading.Thread(target=endpoint.handle, args=(pb.Request(id=id, query=query),), daemon=True)
    thread.start()
    return thread


def test_a_users_slow_queries_hold_up_that_user_alone() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    answered: list[str] = []

    def route(method: str, path: str, params: Any, user: str, admin: bool, viewable: Any) -> tuple[int, dict[str, Any]]:
        if user == "mallory" and path == "queue" and not admin:
            begun.release()
            assert go_on.wait(WAIT_S)
        answered.append(user + path)
        return 200, {}

    endpoint = BridgeEndpoint(lambda event: None, route, lambda: None)
    slow = [ask(endpoint, "mallory"), *(ask(endpoint, "mallory", wait_s="20") for _ in range(7))]
    assert begun.acquire(timeout=WAIT_S)
    ask(endpoint, "ann").join(WAIT_S)
    ask(endpoint, "mallory", "events/", wait_s="20").join(WAIT_S)
    ask(endpoint, "mallory", "leases", admin=True).join(WAIT_S)
    assert answered == ["annqueue", "malloryevents/", "malloryleases"], "nor does an administrator"
    assert not begun.acquire(timeout=0.1), "the other seven have not begun"
    go_on.set()
    for thread in slow:
        thread.join(WAIT_S)
    assert len(answered) == 11


def test_whose_turn_would_come_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", 0.1)
    begun, go_on = threading.Event(), threading.Event()

    def route(method: str, path: str, params: Any, user: str, admin: bool, viewable: Any) -> tuple[int, dict[str, Any]]:
        begun.set()
        assert go_on.wait(WAIT_S)
        return 200, {}

    endpoint = BridgeEndpoint(lambda event: None, route, lambda: None)
    slow = ask(endpoint, "mallory")
    assert begun.wait(WAIT_S)
    late = pb.Request(query=pb.Query(method="GET", path="queue", user="mallory"))
    answers: list[pb.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(endpoint.handle(late)), daemon=True)
    waiting.start()
    waiting.join(1.0)
    assert [a.error for a in answers] == ["busy with earlier queries of yours; try again"]
    go_on.set()
    slow.join(WAIT_S)
    assert endpoint.handle(late).query_reply.status == 200


def test_who_owes_more_than_a_query_may_wait_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s = [0.0]
    monkeypatch.setattr(turns.time, "thread_time", lambda: cpu_s[0])
    users = Turns(threading.Event())
    with users.of("mallory", waits=False):
        cpu_s[0] += AT_ONCE_S + SHARE * (turns.PATIENCE_S + 10.0)
    for waits in (False, True):
        with pytest.raises(TimeoutError), users.of("mallory", waits):
            raise AssertionError("it begins")
    with users.of("ann", waits=False):
        pass


def test_who_took_much_waits_until_it_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, cpu_s, slept = [1000.0], [0.0], []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(timeout or 0.0)
            now_s[0] += timeout or 0.0
            return False

    monkeypatch.setattr(turns.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(turns.time, "thread_time", lambda: cpu_s[0])
    users = Turns(Stopped())

    def query(user: str, cost_s: float) -> None:
        with users.of(user, waits=False):
            cpu_s[0] += cost_s
            now_s[0] += cost_s

    for _ in range(100):
        query("mallory", 0.5)
    assert now_s[0] - 1000.0 == pytest.approx((50.0 - AT_ONCE_S) / SHARE, rel=0.05)
    slept.clear()
    query("ann", 0.5)
    query("ann", 0.4)
    assert slept == [0.0, 0.0], "an ordinary user does not wait"


def test_the_users_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "USERS_MAX", 3)
    users = Turns(threading.Event())
    for k in range(10):
        with users.of(f"u{k}", waits=False):
            pass
    assert list(users._paid_s) == ["u7", "u8", "u9"]


def test_who_changes_something_takes_turns_too() -> None:
    """And what is repeated meanwhile is done once."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    done: list[str] = []

    def route(method: str, path: str, params: Any, user: str, admin: bool, viewable: Any) -> tuple[int, dict[str, Any]]:
        begun.release()
        assert user != "mallory" or go_on.wait(WAIT_S)
        done.append(user + path)
        return 200, {}

    endpoint = BridgeEndpoint(lambda event: None, route, lambda: None)
    slow = [ask(endpoint, "mallory", "kill", method="POST", id=k // 2 + 1) for k in range(8)]
    assert begun.acquire(timeout=WAIT_S)
    ask(endpoint, "ann", "kill", method="POST", id=9).join(WAIT_S)
    assert done == ["annkill"]
    assert begun.acquire(timeout=WAIT_S), "ann's"
    assert not begun.acquire(timeout=0.1), "the others of mallory's have not begun"
    go_on.set()
    for thread in slow:
        thread.join(WAIT_S)
    assert done == ["annkill"] + 4 * ["mallorykill"]
