"""The plugin's modes on a real ResourceManager, switched by `isonomy mode`: off, shadow, on, off, shadow, off."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import BIN, slowness
from tests.cluster.sleepers import Sleepers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


class Modes(Sleepers):
    """A cluster whose plugin begins in mode shadow."""

    def serve(self, policy: str = "isonomy") -> None:
        """Switches before there is a control plane, starts it and waits until it watches."""
        self.mode("shadow")
        self.control = self.control_plane(self.cluster["isonomy_yaml"], policy)
        self.wait(lambda: self.get("status").get("shadow"), 60, "the plugin says hello")

    def mode(self, *words: str) -> dict[str, Any]:
        """`isonomy mode`."""
        done = subprocess.run(
            [BIN / "isonomy", "mode", *words, "-o", "json"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60 * slowness(),
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def restart_with_mutable_queues(self) -> None:
        """kill -9 of the ResourceManager; the next one keeps its queues in a store, so it refuses -refreshQueues."""
        self.dev("kill", "resourcemanager")
        site = Path(self.cluster["conf"]) / "yarn-site.xml"
        key = "<name>yarn.scheduler.configuration.store.class</name><value>memory</value>"
        site.write_text(site.read_text().replace("</configuration>", f"<property>{key}</property></configuration>"))
        self.dev("start", "resourcemanager")

    def visible(self) -> list[tuple[str, str]]:
        """(machine, CUDA_VISIBLE_DEVICES) of each sleeper's container."""
        found = []
        for pid in self.sleeping():
            lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
            environment = dict(x.split("=", 1) for x in lines if "=" in x)
            found.append((environment["NM_HOST"], environment["CUDA_VISIBLE_DEVICES"]))
        return found

    def shadow(self) -> dict[str, int]:
        """What `isonomy shadow` reports: of the rounds as if and of the replay."""
        done = subprocess.run(
            [BIN / "isonomy", "shadow", "-o", "json"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120 * slowness(),
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        return {"gpus": said["live"]["gpus"], "replayed": said["replayed"]}


def test_modes_change_while_the_resourcemanager_runs(tmp_path: Path) -> None:
    rig = Modes(tmp_path / "dc", "isonomy", "--off")
    try:
        stock = rig.sleeper("stock", 2, 2)
        rig.wait(lambda: rig.get("shadow").get("gpus") == 4, 60, "the control plane saw what CapacityScheduler gave")
        assert rig.shadow() == {"gpus": 4, "replayed": 0}
        asleep = rig.sleeping()

        rig.mode("on")
        rig.wait(lambda: rig.get("status").get("ready"), 60, "the control plane leases")
        rig.submit("leased", 5)
        rig.succeeds("leased")
        rig.audit()
        assert rig.sleeping() == asleep, "what CapacityScheduler placed runs on"

        rig.stop()
        off = rig.mode("off", "--queues", "root.research")
        assert (off["by"], off["queues"]) == (rig.cluster["user"], ["root.research"])
        other = rig.sleeper("other", 1, 2)
        gpus = [(host, gpu) for host, ids in rig.visible() for gpu in ids.split(",")]
        assert len(set(gpus)) == len(gpus) == 6, f"each container has two GPUs of its own: {gpus}"
        rig.restart_with_mutable_queues()
        assert rig.mode() == off, "the mode outlives the ResourceManager"
        refused = subprocess.run(rig.hadoop("rmadmin", "-refreshQueues"), capture_output=True, text=True, timeout=300)
        assert "mutable" in refused.stderr, refused.stderr
        rig.wait(lambda: asleep < rig.sleeping(), 60, "containers run on")
        assert rig.mode("shadow")["queues"] == ["root.research"]
        rig.serve()
        assert rig.get("status")["mode"]["by"] == rig.cluster["user"]
        for _ in range(2):
            rig.mode("on")
            rig.wait(lambda: rig.get("status").get("ready"), 60, "the control plane leases again")
            rig.mode("off")
        rig.mode("shadow")
        rig.wait(lambda: rig.get("status").get("shadow"), 60, "the control plane watches again")
        assert sorted(gpus) == sorted((host, gpu) for host, ids in rig.visible() for gpu in ids.split(","))
        for app in (stock, other):
            subprocess.run(
                rig.hadoop("application", "application", "-kill", app), check=True, timeout=300, capture_output=True
            )
        rig.wait(lambda: not rig.sleeping(), 60, "their containers end")
        rig.wait(lambda: rig.app("other").get("state") == "KILLED", 60, "they have ended")
        assert rig.shadow()["replayed"] == 3
        rig.mode("off")
        rig.wait(lambda: rig.get("status").get("state") == "off", 60, "the control plane knows that nobody needs it")
    finally:
        rig.down()
