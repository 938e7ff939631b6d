"""Virtual private clusters on a real YARN: a tenant's guarantee holds while another one fills the cluster.

Prod owns a switch and two single GPUs, two levels below the machine, and a pinned machine; it lends research the switch
until a time. Research fills all twelve GPUs. Then prod asks for its own: the pinned machine comes back at once, the
switch when the exchange has ended, and a gang of all its cells runs on one machine. A second gang waits for the first,
until its priority is raised while both are there. Then the control plane is killed.
Exit status 0 only if all that was seen in time, every app succeeded, and the audit is clean.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import busy
import click
import yaml
from demo import BIN, DEMO, ENDED, REPO, App, Demo, submarine

from pycontrol.cli.tables import out as show
from pycontrol.cli.tables import table
from submarine_patch.cli import stock

LEASE_S, LEAD_S = 20.0, 4.0
LENT_S = 60.0
"""For how long prod lends its switch: until research uses all that exist, and prod has asked for it back."""
WIDE_S = 45.0
"""Within this time research must use all that exist: the switch is lent still."""
ALL_GPUS, OWN_GPUS, LENT_GPUS = 12, 6, 2
"""Of the cluster, of research, and of the switch that it gets by exchange."""
CLAIMED_LEAST = 10
"""GPUs that prod's apps claimed of its cells: 2, 4 and 4."""


def hosts() -> dict[str, str]:
    """The dev-cluster's hosts by the names that they have in cells.yaml."""
    topology = yaml.safe_load((REPO / "dev-cluster/topology.yaml").read_text())
    machines = [m for rack in topology["racks"] for m in rack["machines"]]
    big, small = ([m["host"] for m in machines if m["gpus"] == n] for n in (4, 2))
    return dict(zip(("BIG1", "BIG2", "SMALL1", "SMALL2"), (*big, *small), strict=True))


def cells_file(folder: Path) -> Path:
    """The demo's cells on this cluster's hosts."""
    text = (DEMO / "cells.yaml").read_text()
    for name, host in hosts().items():
        text = text.replace(name, host)
    path = folder.parent / "cells.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@dataclass
class Step:
    """One thing that was to be seen, and when it was."""

    what: str
    took_s: float
    limit_s: float


@dataclass
class CellsDemo(Demo):
    """Steps that each wait for one thing, while what continues is shown."""

    steps: list[Step] = field(default_factory=list)
    shown: str = ""

    def tell(self, text: str) -> None:
        """What comes next, and why."""
        click.echo()
        self.say(text)

    def see(self, what: str, limit_s: float, seen: Callable[[], Any]) -> float:
        """Waits until it is so, and says how long that took."""
        begin_s = time.monotonic()
        while not seen():
            if time.monotonic() - begin_s > limit_s * self.slower:
                self.isonomy("cells", "status")
                raise click.ClickException(f"not within {limit_s * self.slower:.0f} s: {what}; see {self.folder}/log")
            self.need_submitted(states := self.yarn_apps())
            for name, state in states.items():
                if state["finalStatus"] == "FAILED":
                    raise click.ClickException(f"{name} failed: {str(state.get('diagnostics', ''))[:500]}")
            self.show_rounds()
            self.shown = self.show_queue(self.shown)
            time.sleep(0.5)
        took_s = time.monotonic() - begin_s
        self.steps.append(Step(what, took_s, limit_s * self.slower))
        self.say(f"seen after {took_s:.1f} s: {what}")
        return took_s

    def start(self, name: str, queue: str, gpus: int, *more: str) -> None:
        """Submits an app; all but the first save a model."""
        model = None if name == "wide" else f"/demo/{name}/model"
        self.apps.append(App(name, 0, submarine(name, queue, gpus, list(more)), model=model, framework="tensorflow"))
        self.submit(self.apps[-1])

    def explained(self, name: str) -> dict[str, Any]:
        """What `isonomy explain` knows of an app; {} before YARN has it."""
        return self.get("explain", app=name)

    def held(self, name: str) -> list[dict[str, Any]]:
        """The leases of an app whose containers run."""
        leases = self.explained(name).get("leases", [])
        return [x for x in leases if x["container_id"] and x["state"] == "active"]

    def hosts_of(self, name: str) -> set[str]:
        """Where they are."""
        return {x["gpu"].rpartition(":")[0] for x in self.held(name)}

    def tenant(self, name: str) -> dict[str, Any]:
        """A row of `isonomy cells status`."""
        return next((t for t in self.get("cells").get("tenants", []) if t["name"] == name), {})

    def ended(self, name: str) -> bool:
        """Whether YARN has done with it."""
        return self.yarn_apps().get(name, {}).get("state") in ENDED

    def yarn(self, *words: str) -> None:
        """Hadoop's own command line."""
        found = stock.find(self.env)
        command = [found.java, "-cp", f"{found.conf}:{found.lib}/*", "org.apache.hadoop.yarn.client.cli.ApplicationCLI"]
        done = subprocess.run(
            [*command, *words], env=self.env, capture_output=True, text=True, timeout=240, check=False
        )
        if done.returncode:
            raise click.ClickException(f"yarn {' '.join(words)}: {done.stdout}{done.stderr}")

    def audit(self) -> dict[str, Any]:
        """Journal against the NodeManagers' evidence."""
        words = [str(BIN / "isonomy"), "audit", "--cluster-dir", str(self.folder), "-o", "json"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=240, check=False)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def lend(demo: CellsDemo) -> float:
    """Prod offers its switch, research requests it; when the exchange has ended (Unix seconds)."""
    for_s = LENT_S * demo.slower
    demo.tell(f"prod lends research its switch of two GPUs for {for_s:.0f} s; until then it is research's guarantee")
    demo.isonomy("exchange", "offer", "root.prod", "switch:1", "--for", f"{1.5 * for_s:.0f}s", "--id", "spare")
    demo.isonomy("exchange", "request", "root.research", "switch:1", "--for", f"{for_s:.0f}s", "--id", "more")
    demo.see("the exchange is in force", 10, lambda: demo.get("exchange").get("deals"))
    demo.isonomy("cells", "status")
    return max(float(d["end_s"]) for d in demo.get("exchange")["deals"])


def borrow(demo: CellsDemo) -> None:
    """Research fills the cluster."""
    demo.tell(
        "research's app `wide` wants all twelve GPUs: six of its own, two by exchange, and it borrows prod's others"
    )
    search = [
        "--app-scheduler",
        "successive_halving",
        "--search-space",
        str(DEMO / "speech.yaml"),
        "--jobs",
        "6",
        "--eta",
        "2",
        "--gpus-per-job",
        "2",
        "--min-iterations",
        "400",
        "--max-iterations",
        "800",
        "--iteration-s",
        f"{2.0 * demo.slower:g}",
    ]
    demo.start("wide", "research", 2, *search)
    demo.see("wide runs on all twelve GPUs", WIDE_S, lambda: len(demo.held("wide")) == ALL_GPUS)
    guaranteed = sum(x["guaranteed"] for x in demo.held("wide"))
    demo.say(f"{guaranteed} of them are guaranteed, the others borrowed")
    if guaranteed != OWN_GPUS + LENT_GPUS:
        raise click.ClickException(f"{guaranteed} GPUs are guaranteed to wide, not {OWN_GPUS + LENT_GPUS}")


def take_back(demo: CellsDemo, end_s: float) -> None:
    """Prod asks for its own: what is pinned comes back at once, what is lent when the exchange has ended."""
    demo.tell("prod's app `corner` asks for its pinned machine, which wide has borrowed")
    demo.start("corner", "prod", 2, "--pinned", "corner", "--max-iterations", "40", "--iteration-s", "0.6")
    demo.see("corner runs on the pinned machine", 60, lambda: len(demo.held("corner")) == 2)
    if demo.hosts_of("corner") != {hosts()["SMALL1"]}:
        raise click.ClickException(f"corner runs on {demo.hosts_of('corner')}, which is not the pinned machine")

    left_s = max(0.0, end_s - time.time())
    demo.tell(
        f"prod's gang `first` wants four GPUs: two single ones, and the pinned machine when corner is done, or the"
        f" switch, which is lent for {left_s:.0f} s more"
    )
    work = ("--max-iterations", "40", "--iteration-s", f"{4.0 * demo.slower:g}")
    demo.start("first", "prod", 4, "--priority", "1", *work)
    demo.see(
        "first has its four GPUs, guaranteed",
        60 + left_s / demo.slower,
        lambda: sum(x["guaranteed"] for x in demo.held("first")) == 4,
    )
    demo.isonomy("exchange", "list")
    demo.isonomy("explain", "first")


def raise_priority(demo: CellsDemo) -> None:
    """YARN's priority is the priority inside the virtual cluster, also of an app that waits."""
    demo.tell("prod's gang `second` wants the same GPUs, with a priority below that of first")
    demo.start("second", "prod", 4, "--max-iterations", "25", "--iteration-s", f"{2.0 * demo.slower:g}")
    demo.see(
        "second waits, and its reason names the cells that are in use",
        60,
        lambda: demo.explained("second").get("reason", {}).get("code") == "CellsInUse",
    )
    demo.isonomy("explain", "second")
    demo.tell("its priority is raised: yarn application -appId ... -updatePriority 5")
    demo.yarn("application", "-appId", demo.yarn_apps()["second"]["id"], "-updatePriority", "5")
    demo.see("second goes before first at the next end of leases", 90, lambda: len(demo.held("second")) == 4)
    if demo.explained("second")["controls"]["priority"] != 5:
        raise click.ClickException("the raised priority of second is not known")


def kill_control_plane(demo: CellsDemo) -> None:
    """kill -9: what runs continues, and is known again as what it was."""
    assert demo.control is not None
    before = {x["container_id"] for x in demo.held("second")}
    demo.tell(f"the control plane is killed (kill -9 {demo.control.pid}); containers and training continue without it")
    demo.control.kill()
    demo.control.wait(20)
    demo.serve()
    demo.see("its Agents are back", 60, lambda: demo.explained("wide").get("agent"))
    again = [x for x in demo.explained("second").get("leases", []) if x["container_id"] in before]
    done = demo.ended("second")
    if not done and (not again or not all(x["guaranteed"] for x in again)):
        raise click.ClickException("after the restart second's leases are not those of its own cells")
    demo.say("second is done" if done else f"second continues with its {len(again)} leases, guaranteed as before")


def finish(demo: CellsDemo) -> bool:
    """Prod's apps run to their ends; research's has shown what it is for, and is ended. Whether all went well."""
    demo.tell("prod's apps run to their ends")
    for name in ("corner", "second", "first"):
        demo.see(f"{name} ended", 180, lambda name=name: demo.ended(name))
    demo.tell("wide has shown what it is for: isonomy kill wide")
    demo.isonomy("kill", "wide")
    demo.see("wide ended", 60, lambda: demo.ended("wide"))
    final = demo.yarn_apps()
    bad = [n for n in ("corner", "second", "first") if final[n].get("finalStatus") != "SUCCEEDED"]
    for name in bad:
        demo.say(f"{name}: {final[name].get('finalStatus')}: {str(final[name].get('diagnostics', ''))[:500]}")
    return not bad


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=REPO / "build/demo-cells/cluster")
@click.option("--out", type=click.Path(path_type=Path), default=REPO / "build/demo-cells/report.json")
@click.option("--keep", is_flag=True, help="Leave cluster and control plane running afterwards.")
def main(folder: Path, out: Path, keep: bool) -> None:
    """Show a tenant's guarantee on a fresh pseudo-distributed Hadoop; about four minutes, up to four times as long on a
    busy machine."""
    slower = busy.factor()
    path = cells_file(folder.resolve())
    times = {"lease_s": LEASE_S, "lead_s": LEAD_S, "grant_timeout_s": 30.0, "round_retry_s": 3.0}
    settings = (*(f"isonomy.{k}={s * slower:g}" for k, s in times.items()), f"isonomy.cells={path}")
    demo = CellsDemo(folder.resolve(), out, settings, slower=slower)
    with demo.running(keep=keep):
        end_s = lend(demo)
        borrow(demo)
        take_back(demo, end_s)
        raise_priority(demo)
        kill_control_plane(demo)
        succeeded = finish(demo)
        data, good = demo.report()
        claimed = int(demo.audit()["checked"]["guaranteed_gpus_claimed"])
        data["cells"] = {
            "steps": [vars(s) for s in demo.steps],
            "guaranteed_gpus_claimed": claimed,
            "deals_left": len(demo.get("exchange").get("deals", ())),
        }
        out.write_text(json.dumps(data, indent=2) + "\n")
    rows = [(s.what, f"{s.took_s:.1f}", f"{s.limit_s:.0f}") for s in demo.steps]
    click.echo()
    show(table(("what was seen", "after s", "within s"), rows))
    demo.say(f"{claimed} guaranteed GPUs were claimed; the audit held each claim against what the nodes recorded")
    missing = [
        what
        for what, there in (
            ("an app failed", succeeded),
            ("the audit or a model is not as it should be", good),
            (f"fewer than {CLAIMED_LEAST} guaranteed GPUs were claimed", claimed >= CLAIMED_LEAST),
            ("an exchange did not end", not data["cells"]["deals_left"]),
        )
        if not there
    ]
    if missing:
        raise click.ClickException("; ".join(missing))
    demo.say(
        f"prod's guarantee held while research used what was idle or lent to it; the audit is clean; report: {out}"
    )


if __name__ == "__main__":
    main()
