"""`python -m tests.scale.month`: a simulated month in which 100,000 apps come and go, and what memory it takes.

Prints a line of JSON each tenth: resident MB, records kept, the journal's size. Flat is what it must be.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.state import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, YarnApp
from pycontrol.policies.registry import make
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.runtime.journal_keeper import JournalKeeper
from pycontrol.web.feed import Feed
from tests.scale.__main__ import usage

MONTH_S = 30 * 86400.0
HOSTS = 16


def run(apps: int) -> list[dict[str, Any]]:
    """Each app asks for one GPU, has it for some minutes, and ends."""
    policy, seen = make("isonomy"), []
    with tempfile.TemporaryDirectory() as folder:
        clock = [0.0]
        journal = SqliteJournal(Path(folder) / "journal.sqlite")
        keeper = JournalKeeper(journal.path, 7 * 86400.0, 1 << 30, lambda: clock[0], rest_s=0.0)
        feed = Feed(journal)
        a = Arbiter(Settings(recovery_s=0.0, settle_s=0.0, ended_apps_s=7 * 86400.0), policy)
        nodes = tuple(Node(f"n{i}:1", f"n{i}", "r", 8) for i in range(HOSTS))

        def say(now_s: float, *events: ev.Event) -> None:
            clock[0] = now_s
            effects = a.handle_all(events, now_s)
            feed.append(a.take_facts(), now_s)
            for effect in effects:
                if isinstance(effect, ev.Solve):
                    plan = policy.decide(effect.snapshot, effect.bids, random.Random(effect.seed))
                    say(now_s, ev.Decided(effect.snapshot.round_id, plan))
                elif isinstance(effect, ev.Place):
                    name = f"container_{effect.ask.app_id}"
                    container = Container(name, effect.ask.app_id, effect.node_id, effect.gpus, effect.lease_id, 1)
                    say(now_s, ev.DirectiveDone(effect.directive_id, True, name), ev.ContainerUp(container, True))

        say(0.0, ev.ClusterSnapshot(True, nodes, (), (), ()))
        for k in range(apps):
            now_s, app_id = k * MONTH_S / apps, f"application_1700000000000_{k:06}"
            say(now_s, ev.AppAdded(YarnApp(app_id, f"u{k % 40}", "root.q", app_id, attempt_id=app_id)))
            say(now_s + 0.1, ev.AskChanged(Ask(app_id, app_id, 1, 1, 1)))
            say(now_s + 0.2, ev.Tick(), ev.AskChanged(Ask(app_id, app_id, 1, 1, 0)))
            if k >= 20:
                old = f"application_1700000000000_{k - 20:06}"
                say(now_s + 1, ev.ContainerGone(f"container_{old}"), ev.AppRemoved(old, "FINISHED"))
            if k % 2000 == 0:
                keeper.keep()
            if (k + 1) % max(1, apps // 10) == 0:
                size = journal.size()
                seen.append({
                    "apps_seen": k + 1, "mb": usage(os.getpid())[1], "records": len(a.durable.apps),
                    "journal_mb": round(size.bytes / 1e6, 1), "facts": size.facts,
                })  # fmt: skip
                print(json.dumps(seen[-1]), flush=True)
        journal.close()
    return seen


if __name__ == "__main__":
    begin_s = time.process_time()
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    print(json.dumps({"cpu_s": round(time.process_time() - begin_s, 1)}))
