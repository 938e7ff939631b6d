"""The printed plan alone leads a dev-cluster's files through all stages and back; tests/cluster does it live."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycontrol.hadoopconf import render
from pycontrol.hadoopconf.names import OUR_EXECUTORS
from pycontrol.hadoopconf.properties import EXECUTOR, PLUGINS, SCHEDULER_CLASS
from pycontrol.hadoopconf.sitefile import read_site
from tests.hadoopconf.rehearsal import NODE, RM, Walk


class Paper:
    """A cluster of files: after each act something assigns the GPUs of every node, and jars are there in time."""

    def __init__(self, folder: Path) -> None:
        self.confs = {RM: folder / RM, NODE: folder / NODE}
        for who, conf in self.confs.items():
            gpus = {"nodemanager": {"gpus": 4}} if who == NODE else {}
            render.write(render.render({"yarn": {"scheduler": "capacity", "hadoop": "3.5"}, **gpus}), conf)
            for own in ("isonomy.yaml", "submarine-site.xml"):
                (conf / own).unlink(missing_ok=True)
        site = self.confs[NODE] / "yarn-site.xml"
        plugin = f"<property><name>{PLUGINS}</name><value>yarn.io/gpu</value></property>"
        site.write_text(site.read_text().replace("</configuration>", f"{plugin}</configuration>"))
        self.running = {who: read_site(conf / "yarn-site.xml") for who, conf in self.confs.items()}
        """What each daemon read when it started."""
        self.jars: set[str] = set()
        self.modes: list[str] = []
        self.empty_node = self.serves = self.checked = False

    def jar(self, who: str, kind: str) -> None:
        self.jars.add(kind)

    def look(self, who: str) -> None: ...

    def preflight(self, who: str) -> None:
        self.checked = True

    def enable(self, who: str) -> None:
        self.serves = True

    def disable(self, who: str) -> None:
        self.serves = False

    def empty(self, who: str) -> None:
        assert who == NODE
        self.empty_node = True

    def fill(self, who: str) -> None:
        self.empty_node = False

    def restart(self, who: str, daemon: str) -> None:
        assert (who == NODE) == (daemon == "nodemanager")
        before, now = self.running[who], read_site(self.confs[who] / "yarn-site.xml")
        if who == NODE:
            ours, yarns = now.get(EXECUTOR) in OUR_EXECUTORS, "yarn.io/gpu" in now.get(PLUGINS, "")
            assert ours != yarns, "one of them assigns GPUs"
            assert self.empty_node, "neither knows the GPUs of the other's containers"
            assert "nm" in self.jars or not ours
            assert self.checked
        else:
            assert now != before, "no daemon restarts for nothing"
            assert "rm" in self.jars or now[SCHEDULER_CLASS] != "isonomy.yarn.IsonomyScheduler"
        self.running[who] = now

    def mode(self, who: str, mode: str, queues: str = "") -> None:
        assert self.serves
        assert self.running[RM][SCHEDULER_CLASS] == "isonomy.yarn.IsonomyScheduler"
        if mode == "on":
            assert self.running[NODE].get(EXECUTOR) in OUR_EXECUTORS
        self.modes.append(f"{mode} {queues}".strip())


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path)


def test_the_plan_leads_through_all_stages_and_back(paper: Paper, tmp_path: Path) -> None:
    before, walk = {who: read_site(conf / "yarn-site.xml") for who, conf in paper.confs.items()}, Walk(paper, tmp_path)
    assert before == paper.running
    walk.to("--stage", "watch")
    assert paper.running[NODE] == before[NODE], "no GPU node is touched"
    assert paper.modes == ["shadow"]
    walk.to("--stage", "executors")
    walk.to("--stage", "queue", "--queues", "root.research")
    walk.to("--stage", "all")
    assert paper.modes == ["shadow", "on root.research", "on root"]
    paper.mode(RM, "off")
    walk.to("--remove")
    assert paper.running == before
    assert not paper.serves
    assert not paper.empty_node


def test_an_act_that_nobody_knows_is_an_error(paper: Paper, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is not known here: reboot"):
        Walk(paper, tmp_path).act(RM, "reboot")
