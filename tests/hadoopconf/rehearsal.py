"""Walks a printed plan: each act of `isonomy install` is matched with what a cluster does for it; nothing else is done.

An act that no pattern knows is an error, and so is one that a cluster is asked for out of turn.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from click.testing import CliRunner

from pycontrol.cli import main

RM, NODE = "resourcemanagers", "gpu-nodes"
ACTS = {
    r"put jars/isonomy-yarn-(rm|nm)\.jar .*into .*": "jar",
    r"umask 022; python3\.11 -m venv .*|ln -s /opt/isonomy/venv/bin/isonomy .*": "",
    r"put isonomy\.yaml into /etc/isonomy, .*": "",
    r"unpack the archive into /opt/isonomy, .*|put submarine-site\.xml beside .*|export SUBMARINE_HOME=.*": "",
    r"with these changes in its files, .*: isonomy preflight /etc/hadoop/conf": "preflight",
    r"put systemd/isonomy\.logrotate .*": "",
    r"systemctl daemon-reload; systemctl enable --now isonomy": "enable",
    r"systemctl disable --now isonomy": "disable",
    r"systemctl restart hadoop-yarn-(resourcemanager|nodemanager)(?:; the standby first.*)?": "restart",
    r"isonomy mode (on|shadow)(?: --queues (\S+))?": "mode",
    r"isonomy (?:status|queue).*": "look",
    r"empty the node: .*": "empty",
    r"its name out of that file; yarn rmadmin -refreshNodes": "fill",
    r"remove the jar": "",
    r"nodes that autoscaling adds: .*": "",
}


class Site(Protocol):
    """What is done for an act: a method of each name in `ACTS`, with the class of hosts and the pattern's groups.

    Empty: nothing on one machine that has a checkout, or nothing that a running cluster notices.
    """

    confs: Mapping[str, Path]
    """Class of hosts -> the folder that its daemons read."""


class Walk:
    """A plan carried out on a site, step by step."""

    def __init__(self, site: Site, folder: Path, hadoop: str = "3.5") -> None:
        self.site, self.folder, self.hadoop = site, folder, hadoop
        self.done: list[str] = []
        """The acts, in their order."""

    def _planned(self, conf: Path, out: Path, *words: str) -> list[dict[str, Any]]:
        command = ["install", "--hadoop-conf", str(conf), "--hadoop", self.hadoop, *words, "--apply", str(out)]
        result = CliRunner().invoke(main, [*command, "-o", "json"])
        assert result.exit_code in (0, 1), result.output
        steps: list[dict[str, Any]] = json.loads(result.stdout)["steps"]
        return steps

    def to(self, *words: str) -> None:
        """To a stage, or back (`--remove`): each class of hosts has its files from a plan for its own."""
        outs = {who: self.folder / f"out-{len(self.done)}-{who}" for who in self.site.confs}
        plans = {who: self._planned(conf, outs[who], *words) for who, conf in self.site.confs.items()}
        book = plans[RM]
        if "--remove" in words:
            book = [step for who in (NODE, RM) for step in plans[who]]
        for step in book:
            who = NODE if step["hosts"].startswith("GPU nodes") else RM
            if step["changes"] and not (outs[who] / who).exists():
                continue  # these hosts have all of it already
            written = not step["changes"]
            for act in step["do"]:
                if not written and ("with these changes" in act or "restart" in act):
                    shutil.copytree(outs[who] / who, self.site.confs[who], dirs_exist_ok=True)
                    written = True
                self.act(who, act)
            assert written, f"its changes come into force: {step}"

    def act(self, who: str, act: str) -> None:
        found = [(name, match) for pattern, name in ACTS.items() if (match := re.fullmatch(pattern, act))]
        assert len(found) == 1, f"this step of the plan is not known here: {act}"
        ((name, match),) = found
        if name:
            getattr(self.site, name)(who, *(group for group in match.groups() if group))
        self.done.append(act)
