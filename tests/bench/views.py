"""The cost of readers: a picture on the Arbiter's thread, views on theirs, compared with one event."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, YarnApp
from pycontrol.policies.registry import make
from pycontrol.queries import views
from pycontrol.queries.pictures import Camera


def busy(machines: int, apps: int, asks: int, users: int = 50) -> tuple[Arbiter, float]:
    """An Arbiter whose apps (without Agents) have all the containers of one GPU that they asked for; and its time."""
    policy = make("isonomy")
    a = Arbiter(Settings(recovery_s=0.0, settle_s=0.0, lease_s=36_000.0), policy)
    now_s, containers = 0.0, 0
    nodes = tuple(Node(f"n{i}:1", f"n{i}", f"r{i // 16}", 8) for i in range(machines))
    todo: list[ev.Event] = [ev.ClusterSnapshot(True, nodes, (), (), ())]
    for i in range(apps):
        app_id = f"application_1_{i:05}"
        todo.append(ev.AppAdded(YarnApp(app_id, f"u{i % users}", "root.q", app_id, attempt_id=app_id)))
        todo.append(ev.AskChanged(Ask(app_id, app_id, 1, 1, asks)))
    for _ in range(1000):
        effects = a.handle_all(todo or [ev.Tick()], now_s)
        a.take_facts()
        if not todo and not effects and containers == apps * asks:
            break
        todo = []
        for effect in effects:
            if isinstance(effect, ev.Solve):
                plan = policy.decide(effect.snapshot, effect.bids, random.Random(effect.seed))
                todo.append(ev.Decided(effect.snapshot.round_id, plan))
            elif isinstance(effect, ev.Place):
                containers += 1
                name, ask = f"container_{containers}", effect.ask
                container = Container(name, ask.app_id, effect.node_id, effect.gpus, effect.lease_id, 1)
                todo += [ev.DirectiveDone(effect.directive_id, True, name), ev.ContainerUp(container, True)]
        now_s += 1.0
    return a, now_s


def cpu_ms(fn: Callable[[], object], times: int = 5) -> float:
    """Median CPU milliseconds of a call."""
    taken = []
    for _ in range(times):
        begin_s = time.process_time()
        fn()
        taken.append(1e3 * (time.process_time() - begin_s))
    return statistics.median(taken)


def run(machines: int = 1250, apps: int = 2000) -> dict[str, Any]:
    """At 10,000 GPUs, all leased: pictures, views, and a node that comes and goes."""
    a, now_s = busy(machines, apps, machines * 8 // apps)
    camera = Camera()
    begin_s = time.process_time()
    camera.take(a)
    first_ms = 1e3 * (time.process_time() - begin_s)
    picture_ms = cpu_ms(lambda: camera.take(a))
    picture = camera.take(a)
    shown = (views.status, views.queue, views.leases, views.apps, views.audit)

    def bounce() -> None:
        a.handle(ev.NodeDown("n7:1", "lost"), now_s)
        a.handle(ev.NodeUp(Node("n7:1", "n7", "r0", 8)), now_s)

    node_ms = cpu_ms(bounce, 21)
    return {
        "gpus": machines * 8,
        "apps": apps,
        "leased": len(picture.durable.leases),
        "first_picture_ms": first_ms,
        "picture_ms": picture_ms,
        "views_ms": {v.__name__: cpu_ms(lambda v=v: v(picture, now_s, {})) for v in shown},  # type: ignore[misc]
        "node_down_and_up_ms": node_ms,
        "picture_to_node_ratio": picture_ms / node_ms,
    }
