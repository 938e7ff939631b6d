"""OEF on a real YARN: three tenants whose models gain differently from faster GPUs share three types of them.

Nobody declares speedups: each Agent tries its job type on each type, and the policy `oef` shares by what was
measured. Exit status 0 only if what was measured and what the tenants then held agree with the configured speeds and
with the linear programme solved on those, every app succeeded, and the audit is clean.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from demo import DEMO, REPO, App, Demo, held, submarine
from hdfs import InsecureClient
from hdfs.util import HdfsError

from pycontrol.config import load_topology_spec
from pycontrol.negotiate import session
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.problem import ShareProblem

TOPOLOGY = DEMO / "oef.yaml"
LEASE_S = 20.0
LEAD_S = 4.0
LEASES_LEAST = 5
"""The time in which shares are measured is at least so many leases."""
SPEEDUP_TOLERANCE = 0.15
"""Of a measured speedup, relative to the configured one."""
OWED_GPU_LEASES = 5.0
"""A tenant's GPUs of a type may differ by so much over all leases, which on average is the less the longer it was
measured: a gang has two GPUs, and moves only when a whole lease of it is owed."""
PINNED = "virtual-a"
"""The type that one more app asks for."""


@dataclass(frozen=True)
class Tenant:
    """A queue with one app: jobs of two GPUs."""

    name: str
    gpu_bound: float
    iteration_s: float
    """Serial seconds of a step on a GPU of speed 1."""
    jobs: int
    steps: int

    @property
    def queue(self) -> str:
        """Its leaf queue."""
        return f"root.{self.name}"

    def speedups(self, speeds: list[float]) -> list[float]:
        """The true ones: Amdahl's law, relative to the slowest type."""
        times = [1 - self.gpu_bound + self.gpu_bound / v for v in speeds]
        return [max(times) / t for t in times]

    def command(self) -> list[str]:
        """One rung of a search: all jobs run to their end."""
        options = {
            "app-scheduler": "successive_halving",
            "search-space": DEMO / "speech.yaml",
            "gpus-per-job": 2,
            "jobs": self.jobs,
            "max-iterations": self.steps,
            "min-iterations": self.steps,
            "seed": 5,
            "iteration-s": self.iteration_s,
            "gpu-bound": self.gpu_bound,
            "slowdown": "1,1,1",
            "job-type": self.name,
            "trial-steps": 4,
        }
        return submarine(self.name, self.name, 2, [w for k, v in options.items() for w in (f"--{k}", str(v))])


TENANTS = (
    Tenant("vision", 0.4, 2.0, 6, 75),
    Tenant("speech", 0.8, 2.0, 6, 115),
    Tenant("language", 1.0, 3.0, 6, 100),
)


def pinned() -> App:
    """Comes last, and takes one type only."""
    more = ["--max-iterations", "8", "--iteration-s", "1", "--gpu-type", PINNED]
    return App("pinned", math.inf, submarine("pinned", "speech", 2, more), model="/demo/pinned/model")


def apps(_: Path, slower: float) -> list[App]:
    """The tenants' apps, all at once, and the one that asks for a type."""
    sharing = [App(t.name, 2.0 * k, t.command(), model=f"/demo/{t.name}/model") for k, t in enumerate(TENANTS)]
    return [*sharing, pinned()]


@dataclass
class OefDemo(Demo):
    """Watches when all speeds are known, and until when every tenant can use its share."""

    known: dict[str, dict[str, float]] = field(default_factory=dict)
    """Measured seconds of a serial step by job type and GPU type, when all were known."""
    known_s: float = math.inf
    """Unix seconds when that was."""
    window_s: list[float] = field(default_factory=list)
    """Unix seconds: from the leases of the first round with all speeds known, until a tenant cannot use its share."""

    def __post_init__(self) -> None:
        spec = load_topology_spec(TOPOLOGY)
        self.types = list(spec.speeds)
        self.speeds = list(spec.speeds.values())
        self.devices = [sum(m.gpus for m in spec.machines if m.type == t) for t in self.types]
        true = [t.speedups(self.speeds) for t in TENANTS]
        self.ideal = OefCooperative().shares(ShareProblem.of(true, [float(n) for n in self.devices]))

    def show_queue(self, before: str) -> str:
        """Also: looks whether the measured time begins or ends."""
        if math.isinf(self.known_s):
            self.known = self.read_speeds()
            if all(set(self.known.get(t.name, ())) == set(self.types) for t in TENANTS):
                self.known_s = time.time()
                self.say("all speeds are known; the leases that end next show it")
        elif not self.window_s:
            held_s = [r["at_s"] for r in self.get("rounds", n="5").get("rounds", []) if r["at_s"] > self.known_s]
            self.window_s = [min(held_s) + LEAD_S] if held_s else []
        elif len(self.window_s) == 1 and not self.all_want_theirs():
            self.window_s.append(time.time())
            took_s = self.window_s[1] - self.window_s[0]
            self.say(f"a tenant has less to do than its share; measured for {took_s:.0f} s")
            self.apps[-1].after_s = 0.0
            for tenant in TENANTS:
                self.isonomy("explain", tenant.name, "--rounds", "2")
        return super().show_queue(before)

    def read_speeds(self) -> dict[str, dict[str, float]]:
        """Serial seconds by job type and GPU type that the Agents keep on HDFS."""
        hdfs = InsecureClient(self.cluster["webhdfs"], timeout=10, session=session())
        folder = f"/user/{self.cluster['user']}/.isonomy/speeds"
        found: dict[str, dict[str, float]] = {}
        try:
            for name in hdfs.list(folder):
                with hdfs.read(f"{folder}/{name}") as file:
                    kept = json.loads(file.read())
                found[kept["job_type"]] = {t: float(x[0]) for t, x in kept["times"].items()}
        except (HdfsError, ValueError):  # none yet, or one that is being written
            pass
        return found

    def all_want_theirs(self) -> bool:
        """Whether each tenant could use what the linear programme gives it."""
        rows = self.get("queue").get("apps", [])
        could = {t.name: sum(held(r) + int(r["gpus_wanted"]) for r in rows if r["name"] == t.name) for t in TENANTS}
        return all(could[t.name] >= share.sum() - 0.5 for t, share in zip(TENANTS, self.ideal, strict=True))

    def held_by(self, name: str) -> list[float]:
        """GPUs of each type that an app held in the measured time, on average."""
        mean = self.mean_gpus(name, *self.window_s)
        return [mean[t] for t in self.types]

    def types_used(self, name: str) -> set[str]:
        """The GPU types on which an app had a lease."""
        app_id = self.yarn_apps()[name]["id"]
        return {self.host_types()[s.gpu.host] for s in self.leases() if s.app_id == app_id}

    def facts(self) -> dict[str, Any]:
        """Speedups and shares, as configured and as they were."""
        slowest = {t.name: max(self.known[t.name].values()) for t in TENANTS}
        measured = [[slowest[t.name] / self.known[t.name][g] for g in self.types] for t in TENANTS]
        receipts = self.get("rounds", n="200").get("rounds", [])
        seen = [r for r in reversed(receipts) if r["at_s"] < self.window_s[1]]
        why = {a: text for r in seen for a, text in r.get("why", {}).items()}
        return {
            "types": self.types,
            "tenants": [t.name for t in TENANTS],
            "measured_s": self.window_s[1] - self.window_s[0],
            "speedups": {"configured": [t.speedups(self.speeds) for t in TENANTS], "measured": measured},
            "gpus": {"linear_programme": self.ideal.tolist(), "held": [self.held_by(t.name) for t in TENANTS]},
            "why": {t.name: why.get(self.yarn_apps()[t.name]["id"], "") for t in TENANTS},
            "pinned_ran_on": sorted(self.types_used("pinned")),
        }

    def show(self, facts: dict[str, Any]) -> None:
        """The table: configured and measured speedups, shares and what was held."""
        self.say(f"speedups, and mean GPUs held over {facts['measured_s']:.0f} s, on {', '.join(self.types)}:")
        for k, tenant in enumerate(TENANTS):
            columns = [("speedups", "configured", "measured"), ("gpus", "linear_programme", "held")]
            texts = [" ".join(f"{x:5.2f}" for x in facts[a][b][k]) for a, *pair in columns for b in pair]
            self.say(f"  {tenant.name:9} configured {texts[0]}  measured {texts[1]}  LP {texts[2]}  held {texts[3]}")


def missed(facts: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    configured, measured = (np.array(facts["speedups"][k]) for k in ("configured", "measured"))
    ideal, mean = (np.array(facts["gpus"][k]) for k in ("linear_programme", "held"))
    off, apart = np.abs(measured / configured - 1).max(), np.abs(mean - ideal).max()
    tolerated = OWED_GPU_LEASES * LEASE_S / facts["measured_s"]
    silent = [t for t in facts["tenants"] if "speedup" not in facts["why"][t]]
    return [
        what
        for what, wrong in (
            (f"a measured speedup is {off:.0%} off, more than {SPEEDUP_TOLERANCE:.0%}", off > SPEEDUP_TOLERANCE),
            (
                f"a tenant held {apart:.2f} GPUs of a type more or less than the linear programme gives it, more than "
                f"{tolerated:.2f}",
                apart > tolerated,
            ),
            (f"measured for less than {LEASES_LEAST} leases", facts["measured_s"] < LEASES_LEAST * LEASE_S),
            (f"no receipt says why {', '.join(silent)} got its GPUs", bool(silent)),
            (f"the app that asked for {PINNED} ran on {facts['pinned_ran_on']}", facts["pinned_ran_on"] != [PINNED]),
        )
        if wrong
    ]


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=REPO / "build/demo-oef/cluster")
@click.option("--out", type=click.Path(path_type=Path), default=REPO / "build/demo-oef/report.json")
@click.option("--keep", is_flag=True, help="Leave cluster and control plane running afterwards.")
def main(folder: Path, out: Path, keep: bool) -> None:
    """Show OEF's shares of three GPU types on a fresh pseudo-distributed Hadoop; five to six minutes."""
    leaves = ", ".join(f"{t.name}: {{capacity: 30, maximum: 100}}" for t in TENANTS)
    settings = (
        f"isonomy.lease_s={LEASE_S:g}",
        f"isonomy.lead_s={LEAD_S:g}",
        "isonomy.grant_timeout_s=30",
        "isonomy.round_retry_s=3",
        "isonomy.policy=oef",
        "isonomy.policy_options={tenant: queue}",
        f"queues.leaves={{{leaves}, default: {{capacity: 10, maximum: 100}}}}",
    )
    demo = OefDemo(folder.resolve(), out, settings, apps, TOPOLOGY)
    with demo.running(keep=keep):
        succeeded = demo.run()
        data, good = demo.report()
        if len(demo.window_s) < 2:
            raise click.ClickException("the speeds were never all known, or nobody was done: nothing was measured")
        facts = demo.facts()
        demo.show(facts)
        out.write_text(json.dumps({**data, "oef": facts}, indent=2))
    for name, text in facts["why"].items():
        demo.say(f"why {name}: {text}")
    missing = [
        *missed(facts),
        *(["an app failed"] if not succeeded else []),
        *(["the audit or a model is not as it should be"] if not good else []),
    ]
    if missing:
        raise click.ClickException("; ".join(missing))
    demo.say("the tenants' shares are the linear programme's, from speedups that nobody declared; the audit is clean")


if __name__ == "__main__":
    main()
