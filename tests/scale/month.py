"""`python -m tests.scale.month [APPS]`: a simulated month in which 100,000 apps come and go, and what memory it takes.

Prints a line of JSON each tenth: resident MB, objects, records kept, the journal's size. They must stop growing once
the first apps are forgotten, after a week or 10,000 apps; exit status 1 if one does not. At least 10,000 apps make
sense: the leases of 3,000 are kept for readers.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, YarnApp
from pycontrol.policies.registry import make
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.runtime.journal_keeper import JournalKeeper
from pycontrol.web.feed import Feed
from tests.scale.__main__ import usage

MONTH_S, WEEK_S = 30 * 86400.0, 7 * 86400.0
HOSTS = 16
STEADY = 5
"""Tenths of the month after which as much is forgotten as comes."""
GROWTH = {"mb": 0.1, "objects": 0.02, "records": 0.02, "journal_mb": 0.1, "facts": 0.05}
"""The most that each may grow between then and the end, as a share."""


def run(apps: int) -> list[dict[str, Any]]:
    """Each app asks for one GPU, has it for some minutes, and ends."""
    policy, seen = make("isonomy"), []
    with tempfile.TemporaryDirectory() as folder:
        clock = [0.0]
        journal = SqliteJournal(Path(folder) / "journal.sqlite")
        keeper = JournalKeeper(journal.path, WEEK_S, 1 << 30, lambda: clock[0], rest_s=0.0)
        feed = Feed(journal)
        a = Arbiter(Settings(recovery_s=0.0, settle_s=0.0, ended_apps_s=WEEK_S), policy)
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
                keeper.keep()
                size = journal.size()
                gc.collect()
                seen.append(
                    {
                        "apps_seen": k + 1,
                        "mb": usage(os.getpid())[1],
                        "objects": len(gc.get_objects()),
                        "records": len(a.durable.apps),
                        "journal_mb": round(size.bytes / 1e6, 1),
                        "facts": size.facts,
                    }
                )
                print(json.dumps(seen[-1]), flush=True)
        journal.close()
    return seen


def problems(seen: Sequence[Mapping[str, Any]]) -> list[str]:
    """What still grew after it should have become steady."""
    begin, end = seen[STEADY - 1], seen[-1]
    return [
        f"{name} grew from {begin[name]} at {begin['apps_seen']} apps to {end[name]} at {end['apps_seen']}"
        for name, share in GROWTH.items()
        if end[name] > begin[name] * (1 + share)
    ]


def main() -> int:
    """Runs the month and checks it."""
    found = problems(run(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
    print(json.dumps({"cpu_s": round(time.process_time(), 1), "load": os.getloadavg(), "problems": found}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
