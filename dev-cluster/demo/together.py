"""Three virtual clusters on two GPU types, each with its own policy: auctions that see types, OEF, and the default.

In vision (themis) and in speech (oef) two apps want more than there is; one of them gains four times from the fast
type, the other almost nothing. Prod (isonomy) has no app at first, so others borrow its fast machine; then it asks for
it. Exit status 0 only if auctions and shares gave the fast type to the apps that gain most, prod had its machine back
from a borrower in time, every app succeeded, and the audit is clean.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import busy
import click
from cells_demo import CellsDemo
from demo import DEMO, REPO

from pycontrol.cli.tables import out as show
from pycontrol.cli.tables import table

TOPOLOGY, CELLS = DEMO / "together.yaml", DEMO / "together-cells.yaml"
LEASE_S, LEAD_S = 20.0, 4.0
FAST, SLOW, PROD_HOST = "fast", "slow", "127.0.10.3"
POLICIES = {"root.vision": "themis", "root.speech": "oef", "root.prod": "isonomy"}
LEASES = 4
"""For how many leases OEF's shares are measured."""
MOST = 0.5
"""The least part of its virtual cluster's fast GPUs that the app that gains most is to have. OEF's programme gives it
0.92 of two fast GPUs, and 0.71 of four; a gang of two moves only when a whole lease is owed, which over these leases
is 0.13 to 0.25 of them."""


@dataclass(frozen=True)
class Search:
    """An app of two jobs on two GPUs each."""

    queue: str
    gain: float
    """Its speed on the fast type, relative to the slow one."""
    gpu_bound: float
    iteration_s: float
    steps: int
    """Of each job: speech's apps must have work left when its shares have been measured."""


APPS = {
    "cnn": Search("vision", 4.0, 1.0, 8.0, 30),
    "rnn": Search("vision", 1.2, 0.2, 2.0, 40),
    "transformer": Search("speech", 4.0, 1.0, 8.0, 130),
    "lstm": Search("speech", 1.2, 0.2, 2.0, 120),
}
"""A step takes a second on two fast GPUs (cnn, transformer), or on two slow ones (rnn, lstm)."""


@dataclass
class TogetherDemo(CellsDemo):
    """The steps, and what they showed."""

    asked_s: float = 0.0
    """Unix seconds when prod's app was submitted."""

    def search(self, name: str) -> None:
        """Submits one of APPS."""
        app = APPS[name]
        options = {
            "app-scheduler": "successive_halving",
            "search-space": DEMO / "speech.yaml",
            "jobs": 2,
            "eta": 2,
            "gpus-per-job": 2,
            "min-iterations": app.steps,
            "max-iterations": app.steps,
            "slowdown": "1,1,1",
            "job-type": name,
            "iteration-s": f"{app.iteration_s * self.slower:g}",
            "gpu-bound": app.gpu_bound,
            "speedups": f"{SLOW}=1,{FAST}={app.gain:g}",
        }
        self.start(name, app.queue, 2, *(w for k, v in options.items() for w in (f"--{k}", str(v))))

    def receipts(self, vc: str) -> list[dict[str, Any]]:
        """The rounds of a virtual cluster, oldest first."""
        return [r for r in reversed(self.get("rounds", n="200").get("rounds", [])) if r["vc"] == vc]

    def auctions(self) -> list[dict[str, set[str]]]:
        """{app: types that it won} of each auction with both types on offer in which both apps of vision won some."""
        type_of, names, found = self.host_types(), {a["id"]: n for n, a in self.yarn_apps().items()}, []
        for r in self.receipts("root.vision"):
            won = {names[b["app_id"]]: {type_of[h] for h in b["won"]} for b in r.get("bids", ()) if b["won"]}
            if len(won) == 2 and {type_of[h] for h in r["offered"]} == {FAST, SLOW}:
                found.append(won)
        return found

    def served(self) -> set[str]:
        """The apps that have had GPUs."""
        names = {a["id"]: n for n, a in self.yarn_apps().items()}
        return {names[s.app_id] for s in self.leases() if s.app_id in names}

    def paused(self) -> set[str]:
        """The apps that have asked for GPUs and wait for the pause to end."""
        return {a["name"] for a in self.get("queue").get("apps", ()) if a["reason"] == "Paused"}

    def borrowers(self) -> set[str]:
        """The apps that run on prod's machine without a guarantee."""
        return {n for n in APPS for x in self.held(n) if x["gpu"].startswith(PROD_HOST) and not x["guaranteed"]}

    def recalled(self) -> int:
        """GPUs of prod's machine that were revoked after prod had asked for it."""
        return sum(
            s.gpu.host == PROD_HOST and s.revoking_s is not None and s.revoking_s >= self.asked_s for s in self.leases()
        )


def contend(demo: TogetherDemo) -> None:
    """Two apps in vision, two in speech, none in prod."""
    demo.tell(
        "vision decides by auction, speech by OEF's shares; each owns two fast GPUs and two slow ones. In each, one app"
        " is four times as fast on the fast type and the other 1.2 times; each wants four GPUs"
    )
    demo.isonomy("pause")  # who borrows must not depend on which client is the quickest
    for name in APPS:
        demo.search(name)
    demo.see("all four apps ask for GPUs, while rounds are paused", 150, lambda: demo.paused() >= set(APPS))
    demo.isonomy("pause", "--end")
    demo.see("all four apps have had GPUs", 150, lambda: demo.served() >= set(APPS))
    demo.see("prod has no app, and another one borrows its fast machine", 60, demo.borrowers)
    demo.isonomy("cells", "status")


def auction(demo: TogetherDemo) -> None:
    """Vision's apps bid with types."""
    demo.tell("at the end of vision's leases both of its apps bid for both types")
    demo.see("an auction of vision with both types on offer, in which both apps won", 120, demo.auctions)
    demo.isonomy("explain", "cnn", "--rounds", "2")


def share(demo: TogetherDemo) -> dict[str, dict[str, float]]:
    """What speech's apps held of each type on average, for some leases."""
    begin_s, span_s = time.time(), LEASES * LEASE_S * demo.slower
    demo.tell(f"OEF's shares in speech are measured for {LEASES} leases")
    demo.see(f"{LEASES} leases of OEF's shares", span_s / demo.slower + 20, lambda: time.time() - begin_s >= span_s)
    ended = [n for n in ("transformer", "lstm") if demo.ended(n)]
    if ended:
        raise click.ClickException(f"{', '.join(ended)} ended while shares were measured")
    demo.isonomy("explain", "transformer", "--rounds", "2")
    return {n: demo.mean_gpus(n, begin_s, time.time()) for n in ("transformer", "lstm")}


def recall(demo: TogetherDemo) -> set[str]:
    """Prod asks for its machine; who had borrowed it."""
    demo.see("prod's machine is lent", 60, demo.borrowers)
    borrowers = demo.borrowers()
    demo.tell(f"prod's app ranker asks for two GPUs, while {', '.join(sorted(borrowers))} borrows its machine")
    demo.asked_s = time.time()
    demo.start(
        "ranker",
        "prod",
        2,
        "--max-iterations",
        "20",
        "--iteration-s",
        f"{2.0 * demo.slower:g}",
        "--speedups",
        f"{SLOW}=1,{FAST}=1",
    )
    demo.see("ranker has its two GPUs, guaranteed", 90, lambda: sum(x["guaranteed"] for x in demo.held("ranker")) == 2)
    if demo.hosts_of("ranker") != {PROD_HOST}:
        raise click.ClickException(f"ranker runs on {demo.hosts_of('ranker')}, which prod does not own")
    demo.isonomy("explain", "ranker", "--rounds", "2")
    return borrowers


def finish(demo: TogetherDemo) -> bool:
    """All apps run to their ends; whether all succeeded."""
    demo.tell("all apps run to their ends")
    names = ("ranker", *APPS)
    for name in names:
        demo.see(f"{name} ended", 240, partial(demo.ended, name))
    final = demo.yarn_apps()
    bad = [n for n in names if final[n].get("finalStatus") != "SUCCEEDED"]
    for name in bad:
        demo.say(f"{name}: {final[name].get('finalStatus')}: {str(final[name].get('diagnostics', ''))[:500]}")
    return not bad


def missed(demo: TogetherDemo, auctions: list[dict[str, set[str]]], held: dict[str, dict[str, float]]) -> list[str]:
    """What is not as it should be."""
    right = sum(won["cnn"] == {FAST} and won["rnn"] == {SLOW} for won in auctions)
    part = held["transformer"][FAST] / max(1e-9, sum(mean[FAST] for mean in held.values()))
    demo.say(f"{right} of {len(auctions)} auctions gave cnn the fast type and rnn the slow one")
    for name, mean in held.items():
        demo.say(f"{name} held on average {mean[FAST]:.2f} fast and {mean[SLOW]:.2f} slow GPUs")
    ruled = {vc: {r["policy"] for r in demo.receipts(vc)} for vc in POLICIES}
    why = " ".join(text for r in demo.receipts("root.prod") for text in r.get("why", {}).values())
    return [
        what
        for what, wrong in (
            (
                "the first auction did not give cnn the fast type and rnn the slow one",
                auctions[0] != {"cnn": {FAST}, "rnn": {SLOW}},
            ),
            (
                f"only {right} of {len(auctions)} auctions gave cnn the fast type and rnn the slow one",
                2 * right <= len(auctions),
            ),
            (f"the app that gains most had {part:.0%} of speech's fast GPUs, less than {MOST:.0%}", part < MOST),
            (
                "the app that gains least did not have most of speech's slow GPUs",
                held["lstm"][SLOW] <= held["transformer"][SLOW],
            ),
            (f"rounds by other policies: {ruled}", ruled != {vc: {policy} for vc, policy in POLICIES.items()}),
            ("no receipt of prod says what equal sharing would do", "equal sharing would" not in why),
            ("no GPU of prod's machine was taken back from its borrower", not demo.recalled()),
        )
        if wrong
    ]


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=REPO / "build/demo-all/cluster")
@click.option("--out", type=click.Path(path_type=Path), default=REPO / "build/demo-all/report.json")
@click.option("--keep", is_flag=True, help="Leave cluster and control plane running afterwards.")
def main(folder: Path, out: Path, keep: bool) -> None:
    """Show three policies in three virtual clusters on two GPU types, on a fresh pseudo-distributed Hadoop; up to four
    times as long on a busy machine."""
    slower = busy.factor()
    times = {"lease_s": LEASE_S, "lead_s": LEAD_S, "grant_timeout_s": 30.0, "round_retry_s": 3.0}
    leaves = ", ".join(f"{vc.removeprefix('root.')}: {{capacity: 30, maximum: 100}}" for vc in POLICIES)
    settings = (
        *(f"isonomy.{k}={s * slower:g}" for k, s in times.items()),
        f"isonomy.cells={CELLS}",
        f"queues.leaves={{{leaves}, default: {{capacity: 10, maximum: 100}}}}",
    )
    demo = TogetherDemo(folder.resolve(), out, settings, topology=TOPOLOGY, slower=slower)
    with demo.running(keep=keep):
        contend(demo)
        auction(demo)
        held = share(demo)
        borrowers = recall(demo)
        succeeded = finish(demo)
        data, good = demo.report()
        auctions = demo.auctions()
        missing = missed(demo, auctions, held)
        data["together"] = {
            "steps": [vars(s) for s in demo.steps],
            "held": held,
            "borrowers": sorted(borrowers),
            "auctions": [{name: sorted(types) for name, types in won.items()} for won in auctions],
            "recalled_gpus": demo.recalled(),
            "missing": missing,
        }
        out.write_text(json.dumps(data, indent=2) + "\n")
    rows = [(s.what, f"{s.took_s:.1f}", f"{s.limit_s:.0f}") for s in demo.steps]
    show(table(("what was seen", "after s", "within s"), rows))
    missing += [] if succeeded else ["an app failed"]
    missing += [] if good else ["the audit or a model is not as it should be"]
    if missing:
        raise click.ClickException("; ".join(missing))
    demo.say(
        f"each virtual cluster had its policy, each app its type, and prod its machine back; the audit is clean; "
        f"report: {out}"
    )


if __name__ == "__main__":
    main()
