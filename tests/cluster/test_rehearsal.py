"""The run-book live: a stock YARN with its GPU plugin and running apps goes through all stages and back, by it alone.

Without cgroups and a setuid binary (DefaultContainerExecutor) YARN's plugin counts GPUs and gives out no ids: that no
GPU is in two containers is held against the executor's records and /proc from the stage `executors` on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from pycontrol.hadoopconf.properties import PLUGINS, RECORD
from pycontrol.hadoopconf.sitefile import read_site
from tests.cluster.rig import BIN, slowness
from tests.cluster.sleepers import Sleepers
from tests.hadoopconf.rehearsal import NODE, RM, Walk

pytestmark = [pytest.mark.versions, pytest.mark.timeout(3600)]
TOPOLOGY = """virtual_gpus: true
racks:
  - {name: a, machines: [{host: 127.0.10.1, gpus: 4, type: virtual, memory_mb: 16384, vcores: 16}]}
"""
SMI = """#!/bin/sh
case "$*" in
  *query-gpu*) printf '0\\n1\\n2\\n3\\n'; exit;;
esac
echo '<?xml version="1.0" ?><nvidia_smi_log><driver_version>1</driver_version>'
for i in 0 1 2 3; do
  echo "<gpu id=\\"$i\\"><product_name>stand-in</product_name><minor_number>$i</minor_number></gpu>"
done
echo '</nvidia_smi_log>'
"""


class Stage(Sleepers):
    """A stock cluster on which a plan is carried out."""

    def __init__(self, folder: Path) -> None:
        folder.parent.mkdir(exist_ok=True)
        topology = folder.parent / "topology.yaml"
        topology.write_text(TOPOLOGY)
        self.state, self.said, self.served = folder.parent / "var", "", ""
        super().__init__(folder, "isonomy", "--plain", "--topology", str(topology))
        (self.nm,) = (self.folder / "conf-nodemanagers").iterdir()
        self.confs = {RM: Path(self.cluster["conf"]), NODE: self.nm}
        for own in ("isonomy.yaml", "submarine-site.xml"):
            for conf in self.confs.values():
                (conf / own).unlink(missing_ok=True)
        smi = folder / "nvidia-smi"
        smi.write_text(SMI)
        smi.chmod(0o755)
        self.env["PATH"] = f"{folder}:{self.env['PATH']}"
        site = self.nm / "yarn-site.xml"
        keys = {PLUGINS: "yarn.io/gpu", f"{PLUGINS}.gpu.path-to-discovery-executables": str(smi)}
        more = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in keys.items())
        site.write_text(site.read_text().replace("</configuration>", f"{more}</configuration>"))
        self.again(self.nm.name)

    def serve(self, policy: str = "") -> None:
        """A stock cluster has no control plane."""

    def again(self, role: str) -> None:
        """An ordinary stop and a start."""
        pid = int((self.folder / "run" / f"{role}.pid").read_text().split()[0])
        os.kill(pid, signal.SIGTERM)
        self.wait(lambda: not Path(f"/proc/{pid}").exists(), 60, f"{role} ends")
        self.dev("start", role)

    # ---- the acts of the plan

    def jar(self, who: str, kind: str) -> None:
        """On the class path: the dev-cluster puts it there for clusters that are not plain."""
        file = self.folder / "cluster.json"
        data = json.loads(file.read_text())
        data["options"]["plain"] = False
        file.write_text(json.dumps(data))

    def _own_files(self) -> None:
        """The folder of the journal is this test's; so are the keys that name it, when the files are written."""
        out = max(self.folder.parent.glob(f"walk/out-*-{RM}/{RM}/isonomy.yaml"), key=lambda f: f.stat().st_mtime)
        text = out.read_text().replace("/var/lib/isonomy", str(self.state))
        self.served = str(self.folder / "isonomy.yaml")
        Path(self.served).write_text(text)
        assert yaml.safe_load(text)["state_dir"] == str(self.state)
        self.state.mkdir(mode=0o700, exist_ok=True)
        for name in ("yarn-site.xml", RECORD):
            for file in self.folder.parent.glob(f"walk/out-*/*/{name}"):
                file.write_text(file.read_text().replace("/var/lib/isonomy", str(self.state)))

    def look(self, who: str) -> None:
        if self.control is not None:
            self.isonomy("status")

    def preflight(self, who: str) -> None:
        self.said = self.isonomy("preflight", str(self.confs[who]), status=(0, 1))

    def enable(self, who: str) -> None:
        self._own_files()
        self.control = self.control_plane(self.served, "isonomy")

    def disable(self, who: str) -> None:
        self.stop()
        self.control = None

    def empty(self, who: str) -> None:
        """Its apps end by themselves."""
        for pid in self.sleeping():
            os.kill(pid, signal.SIGTERM)
        self.wait(lambda: not self.processes("CONTAINER_ID=container_"), 180, "the node is empty")

    def fill(self, who: str) -> None: ...

    def restart(self, who: str, daemon: str) -> None:
        before = self.sleeping()
        self.again("resourcemanager" if who == RM else self.nm.name)
        self.wait(lambda: self.nodes() == 1, 120, "the node is back")
        assert self.sleeping() == before, "containers live through it"

    def mode(self, who: str, mode: str, queues: str = "") -> None:
        before = self.sleeping()
        self.wait(lambda: self.get("mode"), 120, "the plugin answers")
        self.isonomy("mode", mode, *(["--queues", queues] if queues else []))
        assert self.sleeping() == before, "containers live through it"

    # ---- what is asked

    def isonomy(self, *words: str, status: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [BIN / "isonomy", *words], env=self.env, capture_output=True, text=True, timeout=120 * slowness()
        )
        assert done.returncode in status, done.stdout + done.stderr
        return done.stdout

    def nodes(self) -> int:
        found = self._ask("nodes").get("nodes") or {}
        return sum(n["state"] == "RUNNING" for n in found.get("node", []))

    def sites(self) -> dict[str, dict[str, str]]:
        """Class of hosts -> its yarn-site.xml."""
        return {who: read_site(conf / "yarn-site.xml") for who, conf in self.confs.items()}

    def gpus(self) -> list[str]:
        """The GPUs of the containers that run, by their processes' environment."""
        found = []
        for pid in self.sleeping():
            lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
            found += dict(x.split("=", 1) for x in lines if "=" in x)["CUDA_VISIBLE_DEVICES"].split(",")
        return found

    def recorded(self) -> list[str]:
        """The GPUs of the containers that run, by the executor's record."""
        running: dict[str, list[int]] = {}
        for file in self.folder.glob("data/*/isonomy-evidence.jsonl"):
            for line in map(json.loads, file.read_text().splitlines()):
                if line["event"] == "start":
                    running[line["container"]] = line["gpu_ids"]
                else:
                    running.pop(line["container"], None)
        return [str(gpu) for gpus in running.values() for gpu in gpus]

    def alone(self) -> None:
        """No GPU is in two containers."""
        assert len(set(self.gpus())) == len(self.gpus()), self.gpus()
        assert sorted(self.gpus()) == sorted(self.recorded())


def test_the_printed_plan_alone_installs_and_removes_isonomy(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "dc")
    try:
        stock = stage.sites()
        (tmp_path / "walk").mkdir()
        walk = Walk(stage, tmp_path / "walk")
        stage.sleeper("stock", 1, 2)
        walk.to("--stage", "watch")
        assert stage.get("status")["mode"]["name"] == "shadow"
        assert len(stage.sleeping()) == 1
        walk.to("--stage", "executors")
        assert "GPUs are not isolated on this host: containers run as the NodeManager's user" in stage.said
        stage.sleeper("watched", 1, 1)
        stage.alone()
        walk.to("--stage", "queue", "--queues", "root.research")
        stage.wait(lambda: stage.get("status").get("ready"), 60, "it leases")
        stage.sleeper("leased", 1, 1)
        stage.alone()
        walk.to("--stage", "all")
        stage.sleeper("all", 1, 1)
        stage.alone()
        running = stage.sleeping()
        stage.isonomy("mode", "off")
        assert stage.sleeping() == running
        stage.alone()
        walk.to("--remove")
        stage.sleeper("after", 1, 2)
        assert stage.sites() == stock
    finally:
        stage.down()
