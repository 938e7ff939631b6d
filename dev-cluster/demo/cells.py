"""Virtual private clusters on a real YARN: a tenant's guarantee holds while another one fills the cluster.

Research comes first and borrows prod's idle cells; then prod asks for its own, and gets them within the grace.
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


def apps(cluster: Path) -> list[App]:
    """Research wants all twelve GPUs at once; prod comes later and wants the six that it owns."""
    halving = ["--app-scheduler", "successive_halving", "--eta", "2", "--search-space", str(DEMO / "speech.yaml")]
    borrower = [*halving, "--gpus-per-job", "2", "--seed", "3", "--jobs", "6", "--max-iterations", "60",
                "--min-iterations", "30", "--iteration-s", "2.4"]  # fmt: skip
    owner = ["--max-iterations", "120", "--iteration-s", "1.0"]
    return [
        App("borrower", 0, submarine("borrower", "research", 2, borrower), model="/demo/borrower/model"),
        App("owner", 45, submarine("owner", "prod", 4, owner), model="/demo/owner/model"),
        App("second", 50, submarine("second", "prod", 2, owner), model="/demo/second/model"),
    ]


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
        demo.isonomy("cells", "status")
        succeeded = demo.run()
        demo.isonomy("explain", "owner")
        facts = seen(demo)
        data, good = demo.report()
        data["cells"] = facts
        out.write_text(json.dumps(data, indent=2))
    finally:
        if not keep:
            demo.down()
    demo.say(f"lent {facts['lent_gpus']} GPUs; {facts['taken_back_gpus']} of them taken back for prod's guarantee; "
             f"prod's round was held {facts['owner_waited_for_its_round_s']:.1f} s after its first ask")  # fmt: skip
    missing = [what for what, there in (
        ("research borrowed nothing", facts["lent_gpus"] > 0),
        ("no borrowed GPU was taken back", facts["taken_back_gpus"] > 0),
        (f"prod waited longer than {WAIT_LIMIT_S:g} s", facts["owner_waited_for_its_round_s"] <= WAIT_LIMIT_S),
        ("an app failed", succeeded),
        ("the audit or a model is not as it should be", good),
    ) if not there]  # fmt: skip
    if missing:
        raise click.ClickException("; ".join(missing))
    demo.say("prod's guarantee held while research used what was idle; the audit is clean")


if __name__ == "__main__":
    main()
