"""The webhook gets the events of apps, and cannot block anything."""

import json
import queue
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest
from pydantic import ValidationError

from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.config import NotifySettings
from pycontrol.model.events import AppRemoved, OperatorCommand
from pycontrol.model.topology import Gpu
from pycontrol.runtime.journal import NoJournal
from pycontrol.web import poster
from pycontrol.web.feed import Feed
from pycontrol.web.notify import Notifier
from tests.httpd import Asked, Reply, serving
from tests.web.scene import EARLY, LATE, SHELL, Scene


class Hook:
    def __init__(self) -> None:
        self.got: queue.Queue[dict[str, Any]] = queue.Queue()
        self.status = 200
        self.url = ""

    def answer(self, asked: Asked) -> Reply:
        self.got.put(json.loads(asked.body))
        return Reply(status=self.status)


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    with serving(found.answer) as url:
        found.url = f"{url}/hook"
        yield found


def test_start_revocation_and_end_are_posted(hook: Hook) -> None:
    scene = Scene(run_s=0)
    told = Notifier(hook.url)
    scene.feed.notifier = told
    came = [f.AppArrived(a, f"name of {a}", "root.q", "u", "job", 0.0, 0.0) for a in (EARLY, LATE, SHELL)]
    told.take([(fact, None) for fact in came], 0.0)
    told.start()
    scene.world.run(60)
    scene.submit(OperatorCommand("drain", "n1", "root"))
    scene.world.run(20)
    scene.submit(AppRemoved(SHELL, "FAILED"))
    events = []
    while not events or events[-1]["event"] != "failed":
        events.append(hook.got.get(timeout=60))
    told.stop()
    kinds = [(e["event"], e["app_id"]) for e in events]
    assert kinds.count(("started", LATE)) == 1
    revoked = [e for e in events if e["event"] == "revoked"]
    assert any(e["cause"] == "drained" and all(g.startswith("n1:") for g in e["gpus"]) for e in revoked)
    assert events[-1] | {"at_s": 0} == {
        "event": "failed",
        "app_id": SHELL,
        "name": f"name of {SHELL}",
        "user": "u",
        "queue": "root.q",
        "at_s": 0,
        "final_state": "FAILED",
    }
    assert told.dropped == told.failed == 0


def test_after_a_takeover_apps_that_ran_before_it_are_known() -> None:
    kept = Durable()
    for app_id, leases in (("ran", 1), ("waits", 0)):
        kept.apply(f.AppArrived(app_id, f"name of {app_id}", "root.q", "ann", "job", 5.0, 5.0))
        kept.apps[app_id].leases = leases
    feed = Feed(NoJournal(), Durable())
    told = feed.notifier = Notifier("http://127.0.0.1:9/", Durable())
    posted: list[dict[str, Any]] = []
    told.put = posted.append  # type: ignore[method-assign]
    feed.append([f.Restored(kept.kept())], 9.0)
    gpus = (Gpu("n1", 0),), (Gpu("n1", 1),)
    for app_id, mine in zip(("ran", "waits"), gpus, strict=True):
        feed.append([f.LeaseGranted(mine, app_id, f"r1.{app_id}", 10.0, 900.0)], 10.0)
        feed.append([f.LeaseStarted(mine, f"c-{app_id}", "", 10.0, 900.0)], 10.0)
        feed.append([f.AppEnded(app_id, "FAILED", 11.0)], 11.0)
    assert [(x["event"], x["app_id"], x["user"]) for x in posted] == [
        ("failed", "ran", "ann"),
        ("started", "waits", "ann"),
        ("failed", "waits", "ann"),
    ]
    assert {x["user"] for x in feed.since(None, 0.0, 50)["events"]} == {"ann"}
    waited = generate_latest(feed.metrics.registry).decode()
    assert 'isonomy_first_gpu_wait_seconds_count{queue="root.q"} 1.0' in waited


def test_an_app_that_moved_is_told_and_counted_under_its_new_queue() -> None:
    feed = Feed(NoJournal(), Durable())
    told = feed.notifier = Notifier("http://127.0.0.1:9/")
    posted: list[dict[str, Any]] = []
    told.put = posted.append  # type: ignore[method-assign]
    gpu = (Gpu("n1", 0),)
    feed.append([f.AppArrived("a", "name", "root.old", "ann", "job", 0.0, 0.0)], 0.0)
    feed.append([f.AppMoved("a", "", 10.0, "root.new"), f.AppMoved("a", "vc", 11.0)], 11.0)
    feed.append([f.LeaseGranted(gpu, "a", "g1", 20.0, 900.0), f.LeaseStarted(gpu, "c", "", 20.0, 900.0)], 20.0)
    feed.append([f.AppEnded("a", "FAILED", 30.0)], 30.0)
    assert [(x["event"], x["user"], x["queue"]) for x in posted] == [
        ("started", "ann", "root.new"),
        ("failed", "ann", "root.new"),
    ]
    counted = generate_latest(feed.metrics.registry).decode()
    assert 'isonomy_first_gpu_wait_seconds_count{queue="root.new"} 1.0' in counted
    assert 'isonomy_first_gpu_wait_seconds_count{queue="root.old"} 0.0' in counted


def test_an_unreachable_hook_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poster, "WAITING_MAX", 5)
    told = Notifier("http://127.0.0.1:9/")  # not started: nobody takes them
    for i in range(20):
        came = f.AppArrived(f"a{i}", "n", "q", "u", "job", 0.0, 0.0)
        told.take([(came, None), (f.AppEnded(f"a{i}", "", 1.0), None)], 1.0)
    assert told.dropped == 15
    told.start()
    told.stop()
    assert told.failed <= 5


def test_after_an_error_of_the_hook_the_post_is_retried_once(hook: Hook) -> None:
    hook.status = 500
    told = Notifier(hook.url)
    told.take([(f.AppArrived("a", "n", "q", "u", "job", 0.0, 0.0), None), (f.AppEnded("a", "", 1.0), None)], 1.0)
    told.start()
    assert hook.got.get(timeout=60) == hook.got.get(timeout=60)
    told.stop()
    assert told.failed == 1


def test_addresses() -> None:
    NotifySettings(url="https://hooks.example.org/x?y=1")
    for wrong in ("ftp://x", "http://user:pw@host/", "hooks"):
        with pytest.raises(ValidationError):
            NotifySettings(url=wrong)
