"""`python -m tests.web.rest`: writes docs/rest.json, a JSON Schema of each REST answer, and docs/rest.md from it.

The schemas describe real answers of simulated clusters; test_rest.py checks the answers of other clusters.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycontrol.audit.accounting import accounted, of_totals
from pycontrol.bridge.endpoint import to_json
from pycontrol.fairness.use import DAY_S
from pycontrol.model.accounts import Accounts
from pycontrol.model.cluster import Container, ModeSwitch, Queue
from pycontrol.model.events import ContainerUp, OperatorCommand
from pycontrol.policies import registry
from pycontrol.runtime.gpu_time import Tally, Totals
from pycontrol.simulation.questions import Questions
from pycontrol.web.router import Router
from tests.arbiter.test_cells import CELLS
from tests.arbiter.test_exchange import A, B
from tests.cells.files import layout_of
from tests.cli.conftest import ADMIN
from tests.cli.test_exchange import Floor
from tests.schema import Schema, described, merged, schema_of
from tests.web.stage import Stage, add_troubles, busy, router_of
from tests.whynot.rounds import full

DOCS = Path(__file__).parents[2] / "docs"
PATHS = {
    "status": "the cluster, its GPUs and queues, the policy, what is paused or drained",
    "queue": "the apps in the system, with why each waits and when it is expected to start and end",
    "apps": "apps with their jobs, also some that ended",
    "leases": "GPUs with their leases and reservations",
    "explain": "why one app has what it has (`app`: id or name; `n`: how many rounds)",
    "why-not": "the smallest changes that would give an app GPUs now, each played in the real round (`app`: id or name;"
    " or, for an app that is not submitted yet, `queue`, `gang`, `gpus`, `type`, `scope`: machine, rack or cluster, and"
    " `within`: a type of cell, or `segments`: how many, each in one `segment`: machine or rack; `pinned`: a pinned"
    " cell, `opportunistic`: true, `priority`: YARN's, and `work_total_gpu_s`: the declared work, default one lease)",
    "rounds": "the newest rounds' receipts, newest first (`n`: how many)",
    "spans": "one app's recent leases, and what was taken back from it (`app`)",
    "usage": "GPU-hours of the last year, until at most an hour ago (`by`: day, month, user, account, queue, type,"
    " kind, separated by commas), and what time they cover",
    "trends": "samples of the last hours (`hours`, `app`)",
    "events": "facts since a number, a long poll (`since`, `wait_s`, `limit`)",
    "logs": "where an app's containers' logs are (`app`)",
    "audit": "leases against the containers that YARN reports now; `isonomy audit` checks the whole past",
    "shadow": "in the mode shadow: what Isonomy would have given each time that CapacityScheduler gave out GPUs",
    "picture": "the Arbiter's state, from which `isonomy whatif --now` continues; its form may change with `version`",
    "cells": "virtual clusters with their GPUs, all cells with their bindings, the gangs on them, deals in force",
    "budget": "the limits of users, groups and queues, how much of each is used, and who set it",
    "exchange": "offers and requests on the board, deals in force, each virtual cluster's books",
    "token": "a token for an app of the caller's (`app`), with the address of the Agents' service",
    "metrics": "Prometheus' text, not JSON",
}
"""GET."""
POSTS = {
    "kill": "ends an app (`app`: id or name); its owner may",
    "drain": "a machine gets no new leases, and its GPUs are taken back (`node`: host)",
    "undrain": "a machine is in use again (`node`)",
    "boost": "an app, or all apps of a user, comes first in its virtual cluster (`target`: app or user;"
    " `for_s`: how long, 0 ends it)",
    "pause": "rounds stop, and leases stand still",
    "resume": "rounds are held again",
    "budget-set": "limits of an account (`account`: user NAME, group PATH or queue PATH; `gpus`, `gpu_hours_day`,"
    " `gpu_hours_week`, `gpu_hours_month`: a number or none) replace those of isonomy.yaml",
    "budget-reset": "an account has the limits of isonomy.yaml again (`account`)",
    "cells-apply": "the cells file is read again (`file`: its path on the control plane's machine; without, the one"
    " that isonomy.yaml names)",
    "exchange-offer": "cells are offered to other virtual clusters (`vc`; `cells`: TYPE:COUNT or TYPE:COUNT@CHAIN;"
    " `for_s` or `until_s`; may have `id`)",
    "exchange-request": "cells of others are asked for (as an offer; may have `in_return`: cells, `expires_in_s`)",
    "exchange-withdraw": "an offer or a request leaves the board (`id`)",
}
"""What changes something. Parameters are those of the query, there is no body."""
OF_APP = ("explain", "spans", "logs")
OF_CLUSTER = ("status", "queue", "apps", "leases", "rounds", "trends", "events", "audit")
ANSWERED = [path for path in (*PATHS, *POSTS) if path != "metrics"]
INTRODUCTION = """# REST

Generated from real answers (`python -m tests.web.rest`), as the JSON Schemas of [rest.json](rest.json) are; a test
holds other answers against them, so no field goes or changes its type unseen. All paths are below
`http://RM:8088/ws/v1/cluster/isonomy/`; `isonomy VERB -o json` prints the same objects ([cli-json.md](cli-json.md)).
Times are Unix seconds (`_s`); `[]` is each element of a list, `.*` each value of an object whose keys are data.
Parameters are in the query (`explain?app=sweep`), also of POST, which has no body and needs the header `X-Requested-By`
and, unless said otherwise, an admin ([security.md](security.md)). An error is `{"error": why}` with its status; that of
an unknown path also lists the `paths` that exist. GET `mode` and POST `mode` (`mode`: on, shadow or off; may have
`queues`) are answered by the plugin itself, also without a control plane; the answer is that of `isonomy mode`."""


def answers(stage: Stage) -> dict[str, list[Any]]:
    """The answers of each path, for several apps if it takes one."""
    router = router_of(stage)
    apps = [a["app_id"] for a in router.handle("GET", "queue", {}, "ann", False)[1]["apps"]][:8]
    found: dict[str, list[Any]] = {}
    for path in (*OF_CLUSTER, *OF_APP):
        of_all = [{"since": "0"}] if path == "events" else [{}]
        for params in [{"app": app} for app in apps] if path in OF_APP else of_all:
            status, answer = router.handle("GET", path, params, "ann", False)
            assert status == 200, (path, params, answer)
            found.setdefault(path, []).append(json.loads(to_json(answer)))
    forecast = {
        "made_s": stage.now,
        "assumed": "x",
        "problem": "",
        "apps": {app: {"start_s": [1.0, 2.0, 3.0], "end_s": [4.0, 5.0, 6.0]} for app in apps},
    }
    foreseen = Router(stage, issue=lambda *_: "", arbiter_address="host:1", feed=stage.feed, estimates=lambda: forecast)
    watched = Router(stage, issue=lambda *_: "", arbiter_address="host:1", feed=stage.feed, shadow=as_if)
    for router in (foreseen, watched):
        found.setdefault("shadow", []).append(json.loads(to_json(router.handle("GET", "shadow", {}, "ann", False)[1])))
    questions = Questions({}, ends=lambda: forecast["apps"], slower=10.0)
    asked = Router(
        stage, issue=lambda *_: "", arbiter_address="host:1", feed=stage.feed, why_not=questions.answer, usage=counted
    )
    for by in ("month,account", "user,type,kind", "day,queue"):
        status, answer = asked.handle("GET", "usage", {"by": by}, "ann", False)
        assert status == 200, answer
        found.setdefault("usage", []).append(json.loads(to_json(answer)))
    for params in ({"app": apps[0]}, {"app": apps[-1]}, {"queue": "root.prod", "gang": "4", "gpus": "8"}):
        status, answer = asked.handle("GET", "why-not", params, str(params), False)
        assert status == 200, answer
        found.setdefault("why-not", []).append(json.loads(to_json(answer)))
    free = full(queues=(Queue("root.q"),))
    for gang in ("1", "2"):
        said = questions.answer(free.a, free.now, {"queue": "q", "gang": gang}, gang, str)
        found["why-not"].append(json.loads(to_json(said)))
    questions.stop()
    for path, params in (("queue", {}), ("explain", {"app": apps[0]})):
        found[path].append(json.loads(to_json(foreseen.handle("GET", path, params, "ann", False)[1])))
    return found


def counted(by: Sequence[str], accounts: Accounts) -> dict[str, Any]:
    """Two days of use, with a time between them that nobody saw; one type has no price."""
    day = 20_000
    rows = {
        (day, "ann", "root.prod", "V100", "hyperband"): Tally(2, 1, 7200.0, 3600.0, 60.0, 30.0, 90.0),
        (day + 1, "eve", "root.research", "T4", "plain"): Tally(0, 0, 1800.0, 1800.0),
    }
    times = [(day * DAY_S, day * DAY_S + 7200.0), ((day + 1) * DAY_S, (day + 1) * DAY_S + 7200.0)]
    kept = Totals(times[0][0], times[1][1], rows, times)
    return accounted(of_totals([kept], day * DAY_S, (day + 2) * DAY_S), by, accounts, {"V100": 2.5})


def as_if() -> dict[str, Any]:
    """Hypothetical rounds, one of which would have revoked GPUs."""
    return {
        "since_s": 1.0,
        "decisions": 1,
        "same": 0,
        "gpus": 4,
        "same_gpus": 0,
        "by_user": [{"queue": "root.q", "user": "ann", "given": 4, "would_give": 0, "would_take": 0}],
        "newest": [
            {
                "at_s": 2.0,
                "given": {"a": 4},
                "would_give": {"b": 4},
                "would_take": {"c": 1},
                "why": {"a": "others come first"},
            }
        ],
    }


def traded() -> dict[str, list[Any]]:
    """The answers of the paths that need virtual clusters, an admin, or an app's owner."""
    floor, found = Floor(), dict[str, list[Any]]()

    def ask(method: str, path: str, user: str = ADMIN, **params: str) -> None:
        status, answer = floor.router.handle(method, path, params, user, user == ADMIN)
        assert status == 200, (path, params, answer)
        found.setdefault(path, []).append(json.loads(to_json(answer)))

    floor.router.read_cells = lambda _: (layout_of(CELLS), {}, "", list)
    ask("GET", "exchange")
    ask("POST", "exchange-offer", vc=A, cells="small:1", for_s="600", id="spare")
    ask("POST", "exchange-offer", vc=A, cells="big:1", for_s="600", id="dear")
    ask("GET", "exchange")
    ask("POST", "exchange-withdraw", id="dear")
    ask("POST", "exchange-request", vc=B, cells="small:1", for_s="300", id="need")
    ask("POST", "exchange-request", vc=B, cells="big:1", for_s="300", in_return="small:1", expires_in_s="60", id="swap")
    for path in ("exchange", "cells", "audit", "status", "queue", "leases", "picture"):
        ask("GET", path)
    app = "application_1_0001"
    ask("GET", "explain", app=app)
    ask("GET", "token", user=floor.world.arbiter.durable.apps[app].user, app=app)
    host = next(iter(floor.world.arbiter.holdings.topology.machines))
    for path, params in (
        ("drain", {"node": host}),
        ("undrain", {"node": host}),
        ("pause", {}),
        ("resume", {}),
        ("boost", {"target": app, "for_s": "60"}),
    ):
        ask("POST", path, **params)
    ask("POST", "budget-set", account="user ann", gpus="4", gpu_hours_week="100")
    ask("GET", "budget")
    ask("POST", "budget-reset", account="user ann")
    ask("POST", "cells-apply", file="cells.yaml")
    ask("GET", "cells")
    ask("POST", "kill", app=app)
    return found


def stages() -> list[Stage]:
    """Clusters whose answers are documented."""
    made = [
        busy(registry.make(policy), apps=25, hours=4, seed=seed) for policy, seed in (("isonomy", 3), ("themis", 5))
    ]
    add_troubles(made[0])
    made[0].arbiter.cluster.switch = ModeSwitch(queues=("root.research",), by="ann", at_s=1.0)
    first, second, *_ = made[0].arbiter.durable.live.values()
    first.best = {"configuration": {"lr": "0.1"}, "accuracy": 0.9}
    second.best = {**first.best, "metric": "loss", "value": 0.2}
    receipts = made[0].arbiter.holdings.receipts
    k, outcome = next((k, r.outcome) for k, r in reversed([*enumerate(receipts)]) if r.outcome is not None)
    receipts[k] = dataclasses.replace(
        receipts[k], outcome=dataclasses.replace(outcome, unsaved_gpu_s={first.app_id: 90.0})
    )
    for app_id in list(made[0].arbiter.durable.live)[:8]:
        made[0].arbiter.agents[app_id].links = (("TensorBoard", "http://n1:6006"),)
    made[1].submit(OperatorCommand("boost", f"app {next(iter(made[1].arbiter.durable.live))}", ADMIN, 3600.0))
    made[1].run_until(made[1].now + 700)
    made[0].run_until(made[0].now + 70)
    gpu = next(iter(made[1].arbiter.gpus.free))
    node_id = made[1].arbiter.cluster.node_at[gpu.host].node_id
    made[1].submit(ContainerUp(Container("other", "x", node_id, (gpu,), gpu_count=1, plain=True), running=True))
    return made


def document() -> dict[str, Schema]:
    """The schema of each path."""
    found: dict[str, list[Any]] = {}
    for stage in stages():
        for path, some in answers(stage).items():
            found.setdefault(path, []).extend(some)
    for path, some in traded().items():
        found.setdefault(path, []).extend(some)
    return {path: merged(schema_of(a) for a in found[path]) for path in ANSWERED}


def page(schemas: dict[str, Schema]) -> str:
    """docs/rest.md."""
    lines = [*INTRODUCTION.splitlines(), ""]
    for method, paths in (("", PATHS), ("POST ", POSTS)):
        for path, text in paths.items():
            lines += [f"## {method}{path}", "", text[0].upper() + text[1:] + ".", ""]
            if path in schemas:
                lines += ["| field | type | |", "| --- | --- | --- |", *described(schemas[path]), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Writes both files."""
    schemas = document()
    (DOCS / "rest.json").write_text(json.dumps(schemas, indent=1) + "\n", encoding="utf-8")
    (DOCS / "rest.md").write_text(page(schemas), encoding="utf-8")


if __name__ == "__main__":
    main()
