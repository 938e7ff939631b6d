"""Applications without an Agent on a real cluster: distributed shells whose containers sleep."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from tests.cluster.rig import Rig

SLEEP_S = 2917
"""Says which processes are the containers'."""


class Sleepers(Rig):
    """A cluster with such applications."""

    def hadoop(self, *words: str) -> list[str]:
        """The command line of a Hadoop client."""
        return [str(self.repo / "dev-cluster/hadoop"), "--dir", str(self.folder), *words]

    def shell(self, name: str, containers: int, gpus: int, until: Callable[[], Any], *more: str) -> None:
        """Runs a distributed shell whose containers have GPUs and sleep; waits until the condition holds."""
        script = self.folder / "sleep.sh"
        script.write_text(f"exec sleep {SLEEP_S}\n")
        words = [
            "-appname",
            name,
            "-shell_script",
            str(script),
            "-num_containers",
            str(containers),
            "-queue",
            "research",
            "-container_resources",
            f"memory-mb=256,vcores=1,yarn.io/gpu={gpus}",
            "-master_memory",
            "256",
            "-timeout",
            "3000000",
            *more,
        ]
        with (self.folder / "log" / f"{name}.log").open("wb") as log:
            client = subprocess.Popen(self.hadoop("distributedshell", *words), stdout=log, stderr=log)
        try:
            self.wait(until, 150, f"{name} got as far as it should")
        finally:
            client.kill()
            client.wait()

    def sleeper(self, name: str, containers: int, gpus: int, *more: str) -> str:
        """Runs such a distributed shell; its id once all its containers sleep."""
        before = self.sleeping()
        self.shell(name, containers, gpus, lambda: len(self.sleeping() - before) == containers, *more)
        return str(self.app(name)["id"])

    def sleeping(self) -> set[int]:
        """The processes of the sleepers' containers."""
        return set(self.processes(f"sleep\0{SLEEP_S}\0"))
