"""`isonomy estimate`: when would an app start that is submitted now? `isonomy snapshot`: the state, as a file."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group

from pycontrol.arbiter.ledger.lease import load_lease
from pycontrol.cli.client import ABOVE_0, FILE, Misused, Rm, failing, output_option, rm_address
from pycontrol.cli.screens import estimate, why_not
from pycontrol.cli.tables import Data, emit, lines
from pycontrol.model.accounts import OTHERS
from pycontrol.model.auction import Demand
from pycontrol.simulation.forecaster import ASSUMED, ERROR, RUNS
from pycontrol.simulation.outlook import NoOutlook, outlooks
from pycontrol.simulation.scene import ASKED, Scene, scene_from, with_app
from pycontrol.words import suggest

STATE_FILE = "state.json"
NAMES = (
    *("user", "queue", "name", "app_id", "host", "rack", "path", "partition", "vc", "by", "owner", "tenant"),
    *("users", "queues", "groups", "below", "queue_users", "queue_weights", "partitions", "exempt_queues"),
)
"""What --anonymise replaces, consistently: what stands under these keys, and the keys of those that are mappings."""
ACCOUNTS = ("account", "target", "switch", "switches")
"""Here names come after a word: `user NAME`, `drained:HOST`."""
OWN = ("is", "policy", "kind", "state", "cause", "app_scheduler", "of", "remembered_by")
"""Here are Isonomy's own words, even where somebody's name is the same."""


@click.command("estimate")
@click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs at once.")
@click.option("--hours", type=ABOVE_0, required=True, help="Hours on all of them.")
@click.option("--queue", required=True, help="The leaf queue, as root.research.")
@click.option("--gang", type=click.IntRange(1), help="GPUs of a gang [default: a machine's, at most --gpus].")
@click.option("--why", is_flag=True, help="Also which GPUs it would get now, on what terms; else what would help.")
@output_option
def estimate_command(gpus: int, hours: float, queue: str, gang: int | None, why: bool, output: str) -> None:
    """Predict when an app of this size would start and end if submitted now; nothing is submitted.

    The scheduler itself is run forward from its present state, on this machine, several times: with declared work
    that is wrong by up to 20 %, and with apps that come as in the last day.

    \b
    isonomy estimate --gpus 16 --hours 4 --queue root.research
    """
    server = Rm(rm_address())
    scene = scene_at(server)
    queues = {q.path: q for q in scene.cluster.queues if q.leaf}
    if queues and queue not in queues:
        raise Misused(f"--queue {queue}: is not a leaf queue; {suggest(queue, sorted(queues))}")
    if queue in queues and queues[queue].stopped:
        raise Misused(f"--queue {queue}: is stopped; YARN takes no app there")
    if queue in queues and queues[queue].unmanaged:
        raise Misused(f"--queue {queue}: CapacityScheduler serves it; an estimate needs a queue that Isonomy serves")
    machines = scene.topology
    if gpus > machines.gpus:
        raise Misused(f"--gpus {gpus}: the cluster has {machines.gpus}")
    if gang and gpus % gang:
        raise Misused(f"--gang {gang}: does not divide --gpus {gpus}")
    gang = gang or min(gpus, machines.largest_gpus)
    gang = gpus if gpus % gang else gang
    work_gpu_s = gpus * hours * 3600.0
    with failing(NoOutlook), Console(stderr=True).status(f"{RUNS} futures"):
        asked = with_app(scene, server.user, queue, Demand(gang, gpus // gang, gang, work_gpu_s, work_gpu_s))
        found = outlooks(asked, runs=RUNS, error=ERROR, only=ASKED)[ASKED]
    data: dict[str, Any] = {"now_s": scene.now_s, "start_s": found.start_s, "end_s": found.end_s, "assumed": ASSUMED}
    if why:
        data["why_not"] = server.get("why-not", queue=queue, gpus=gpus, gang=gang, work_total_gpu_s=str(work_gpu_s))
    emit(data, output, _drawn)


def _drawn(d: Data) -> Group:
    starts, ends = estimate(d["start_s"], None, 0, d["now_s"]), estimate(None, d["end_s"], 1, d["now_s"])
    return lines(f"{starts}; {ends}", f"if {ASSUMED}", why_not(d["why_not"]) if "why_not" in d else None)


@click.command("snapshot")
@click.option("--out", type=FILE, required=True, metavar="FILE.zip")
@click.option("--anonymise", is_flag=True, help="Without names of users, queues, apps and hosts.")
@output_option
def snapshot_command(out: Path, anonymise: bool, output: str) -> None:
    """Keep the scheduler's state in a file, for a bug report or for `isonomy whatif FILE`.

    It has apps with their users and queues, demands, leases and machines; no configurations, no logs, no tokens.
    """
    server = Rm(rm_address())
    state = server.get("picture")
    with failing(OSError, what=f"--out {out}: cannot be written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(STATE_FILE, json.dumps(anonymous(state) if anonymise else state))
    emit({"written": str(out), "apps": len(state["agents"])}, output, lambda d: f"written: {d['written']}")


def scene_at(server: Rm) -> Scene:
    """The control plane's state."""
    with failing(ValueError, what="the control plane's state cannot be read here"):
        return scene_from(server.get("picture"))


def read_snapshot(file: Path) -> Scene:
    """The state in a file; Misused where it is none."""
    try:
        with zipfile.ZipFile(file) as archive:
            return scene_from(json.loads(archive.read(STATE_FILE)))
    except Exception as e:  # what damaged bytes lead to has no common name
        raise Misused(f"{file}: is not a snapshot of `isonomy snapshot` ({e})") from e


def anonymous(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same with names replaced, each by the same everywhere it stands, as key, value or part of a text."""
    names, durable = dict[str, str](), state["durable"]

    def collect(of: Any, key: str = "name") -> None:
        if isinstance(of, Mapping):
            for k, v in of.items():
                if key == "gpu_s":  # of queues, and within them of users
                    collect(k)
                collect(v, key if key == "gpu_s" or k == "of" else "name" if k in names else k)
        elif isinstance(of, list | tuple):
            for v in of:
                collect(v, key)
        elif isinstance(of, str) and key in ACCOUNTS:
            collect(re.split("[ :/]", of)[1:])
        elif isinstance(of, str) and key in NAMES and of not in ("", OTHERS):
            names.setdefault(of, f"{key.removesuffix('_id').removesuffix('s')}{len(names) + 1}")

    collect(state)
    collect([row[:2] for row in (*durable["plain"], *durable["uses"])])
    collect({"host": [gpu.host for lease in durable["leases"] for gpu in load_lease(lease).gpus]})
    names |= {name: names[f"root.{name}"] for name in names if f"root.{name}" in names}
    names |= {f"{name} (borrowed)": f"{new} (borrowed)" for name, new in names.items()}
    some = "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))
    whole = re.compile(rf"(?<![^\W_])(?:{some})(?![^\W_])" if some else r"(?!)")

    def replaced(of: Any) -> Any:
        if isinstance(of, Mapping):
            return {names.get(k, k): v if k in OWN and isinstance(v, str) else replaced(v) for k, v in of.items()}
        if isinstance(of, list | tuple):
            return [replaced(v) for v in of]
        return names.get(of) or whole.sub(lambda m: names[m[0]], of) if isinstance(of, str) else of

    found: dict[str, Any] = replaced(state)
    for app in found["durable"]["apps"]:
        app.update(best=None, model_path="", message="")
    return found
