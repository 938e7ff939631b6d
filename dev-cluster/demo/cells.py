"""Virtual private clusters on a real YARN: a tenant's guarantee holds while another one fills the cluster.

Prod lends research a small cell until a time; until then it is research's guarantee. Research comes first, and borrows
prod's other idle cells too. Then prod asks for its own: it gets its big cell within the grace, the small one when the
exchange is over.
Exit status 0 only if that was seen, every app succeeded, and the audit is clean.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import click
import yaml
from demo import DEMO, REPO, App, Demo, submarine

LEASE_S = 120.0
GRACE_S = 15.0
WAIT_LIMIT_S = 30.0
"""From prod's first ask to its first own GPU: the grace, and what containers take to start and stop."""
LENT_S = 80.0
"""For how long prod lends its small cell: until its own apps have come, and research still uses all that it has."""
RESEARCH_GPUS = 6
"""What research owns without exchange."""


def cells_file(folder: Path) -> Path:
    """The demo's cells on this cluster's hosts."""
    topology = yaml.safe_load((REPO / "dev-cluster/topology.yaml").read_text())
    machines = [m for rack in topology["racks"] for m in rack["machines"]]
    big, small = ([m["host"] for m in machines if m["gpus"] == n] for n in (4, 2))
    text = (DEMO / "cells.yaml").read_text()
    for name, host in zip(("HOST1", "HOST2", "HOST3", "HOST4"), (*big, *small), strict=True):
        text = text.replace(name, host)
    path = folder.parent / "cells.yaml"
    path.write_text(text)
    return path


def apps(cluster: Path, slower: float) -> list[App]:
    """Research wants all twelve GPUs at once; prod comes later and wants the six that it owns."""
    halving = ["--app-scheduler", "successive_halving", "--eta", "2", "--search-space", str(DEMO / "speech.yaml")]
    borrower = [*halving, "--gpus-per-job", "2", "--seed", "3", "--jobs", "6", "--max-iterations", "60",
                "--min-iterations", "30", "--iteration-s", "3.6"]  # fmt: skip
    owner = ["--max-iterations", "120", "--iteration-s", "1.0"]
    return [
        App("borrower", 0, submarine("borrower", "research", 2, borrower), model="/demo/borrower/model"),
        App("owner", 45, submarine("owner", "prod", 4, owner), model="/demo/owner/model"),
        App("second", 50, submarine("second", "prod", 2, owner), model="/demo/second/model"),
    ]


def lend(demo: Demo) -> float:
    """Prod offers its small cell, research requests it; when the exchange is over (Unix seconds)."""
    term = ("small:1", "--for", f"{LENT_S:g}s", "--id")
    demo.isonomy("exchange", "offer", "root.prod", *term, "spare")
    demo.isonomy("exchange", "request", "root.research", "small:1", "--for", f"{LENT_S - 5:g}s", "--id", "more")
    demo.isonomy("exchange", "list")
    demo.isonomy("cells", "status")
    return max((float(d["end_s"]) for d in demo.get("exchange").get("deals", ())), default=0.0)


def traded(demo: Demo, end_s: float) -> dict[str, Any]:
    """What the receipts say of the exchange."""
    rounds = [r for r in demo.get("rounds", n="1000").get("rounds", []) if r["guaranteed"]]
    research = [r for r in rounds if r["vc"] == "root.research" and r["deals"]]
    records = {a["name"]: a for a in demo.get("apps").get("apps", [])}
    second = records.get("second", {"app_id": "", "arrived_s": 0.0})
    granted = [r["at_s"] for r in rounds if r["vc"] == "root.prod"
               and any(x["app_id"] == second["app_id"] for x in r.get("granted", ()))]  # fmt: skip
    return {
        "research_guaranteed_gpus": max((len(r.get("granted", ())) for r in research), default=0),
        "second_waited_after_the_end_s": min(granted) - max(end_s, second["arrived_s"]) if granted else float("inf"),
        "deals_left": len(demo.get("exchange").get("deals", ())),
    }


def seen(demo: Demo) -> dict[str, Any]:
    """What the receipts say: loans, and how long prod waited for its own cells."""
    rounds = demo.get("rounds", n="1000").get("rounds", [])
    lent = sum(len(r.get("granted", ())) for r in rounds if r["vc"] == "root.research" and not r["guaranteed"])
    taken = [x for r in rounds if r["vc"] == "root.prod" and r["guaranteed"] for x in r.get("revoked", ())]
    own = [r["at_s"] for r in rounds if r["vc"] == "root.prod" and r["guaranteed"] and r.get("granted")]
    records = {a["name"]: a for a in demo.get("apps").get("apps", [])}
    waited_s = min(own) - records["owner"]["arrived_s"] if own and "owner" in records else float("inf")
    return {"lent_gpus": lent, "taken_back_gpus": len(taken), "owner_waited_for_its_round_s": waited_s}


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=REPO / "build/demo-cells/cluster")
@click.option("--out", type=click.Path(path_type=Path), default=REPO / "build/demo-cells/report.json")
@click.option("--keep", is_flag=True, help="Leave cluster and control plane running afterwards.")
def main(folder: Path, out: Path, keep: bool) -> None:
    """Show a tenant's guarantee on a fresh pseudo-distributed Hadoop; about five minutes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    path = cells_file(folder.resolve())
    settings = (f"isonomy.lease_s={LEASE_S:g}", f"isonomy.lead_s={GRACE_S:g}", "isonomy.grant_timeout_s=30",
                "isonomy.round_retry_s=4", f"isonomy.cells={path}")  # fmt: skip
    demo = Demo(folder.resolve(), out, settings, apps)
    try:
        demo.up()
        demo.serve()
        end_s = lend(demo)
        succeeded = demo.run()
        demo.isonomy("explain", "owner")
        demo.isonomy("exchange", "list")
        facts = seen(demo) | traded(demo, end_s)
        data, good = demo.report()
        data["cells"] = facts
        out.write_text(json.dumps(data, indent=2))
    finally:
        if not keep:
            demo.down()
    demo.say(f"lent {facts['lent_gpus']} GPUs; {facts['taken_back_gpus']} of them taken back for prod's guarantee; "
             f"prod's round was held {facts['owner_waited_for_its_round_s']:.1f} s after its first ask")  # fmt: skip
    demo.say(f"by exchange research got {facts['research_guaranteed_gpus']} GPUs guaranteed; prod's small cell was "
             f"granted {facts['second_waited_after_the_end_s']:.1f} s after the exchange was over")  # fmt: skip
    missing = [what for what, there in (
        ("research borrowed nothing", facts["lent_gpus"] > 0),
        ("no borrowed GPU was taken back", facts["taken_back_gpus"] > 0),
        (f"prod waited longer than {WAIT_LIMIT_S:g} s", facts["owner_waited_for_its_round_s"] <= WAIT_LIMIT_S),
        ("no exchange was made", end_s > 0),
        ("research got no guarantee by exchange", facts["research_guaranteed_gpus"] > RESEARCH_GPUS),
        ("prod's small cell did not come back in time", 0 <= facts["second_waited_after_the_end_s"] <= WAIT_LIMIT_S),
        ("an exchange did not end", not facts["deals_left"]),
        ("an app failed", succeeded),
        ("the audit or a model is not as it should be", good),
    ) if not there]  # fmt: skip
    if missing:
        raise click.ClickException("; ".join(missing))
    demo.say("prod's guarantee held while research used what was idle or lent to it; the audit is clean")


if __name__ == "__main__":
    main()
