"""Tags of applications without an Agent on a real YARN: a time limit, and an idle interactive container."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pycontrol.hadoopconf.queues import read_queues
from tests.cluster.sleepers import Sleepers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

TAGS = "-application_tags"


def test_tagged_containers_end_by_time_and_by_idleness(tmp_path: Path) -> None:
    rig = Sleepers(tmp_path / "dc", "isonomy", "--set", "isonomy.interactive_idle_s=20")

    def ends(cause: str) -> list[str]:
        journal = next((tmp_path / "dc").rglob("journal.sqlite"))
        with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as facts:
            rows = facts.execute(
                "SELECT data FROM facts WHERE kind = 'LeaseEnded' AND json_extract(data, '$.cause') = ?", [cause]
            ).fetchall()
        return [row for (row,) in rows]

    try:
        seen = rig.get("picture")["cluster"]
        told = {queue["path"]: queue for queue in seen["queues"]}
        gpus = sum(node["gpus"] for node in seen["nodes"])
        for queue in read_queues(rig.folder / "conf/capacity-scheduler.xml", {"": gpus}):
            there = told[queue.path]
            for name in ("capacity", "max_capacity", "leaf", "user_limit", "user_limit_factor", "stopped"):
                assert there[name] == pytest.approx(getattr(queue, name)), (queue.path, name)
        rig.sleeper("plain", 1, 1)
        plain = rig.sleeping()
        notebook = rig.sleeper("notebook", 1, 1, TAGS, "isonomy.interactive")
        first = rig.sleeping() - plain
        said = rig.get("explain", app=notebook)
        assert said["controls"]["declared"] == "interactive"

        def second_waits() -> bool:
            return bool(rig.get("explain", app="second").get("reason", {}).get("code") == "InteractiveLimit")

        rig.shell("second", 1, 1, second_waits, TAGS, "isonomy.interactive")
        before = rig.sleeping()
        rig.sleeper("short", 1, 1, TAGS, "isonomy.max_hours=0.015")
        short = rig.sleeping() - before
        rig.wait(lambda: not short & rig.sleeping(), 120, "the time of a container is over")
        rig.wait(lambda: ends("time_limit"), 30, "the journal says so")
        rig.wait(lambda: not first & rig.sleeping(), 240, "an idle interactive container ends")
        rig.wait(lambda: ends("idle"), 30, "the journal says so")
        assert plain <= rig.sleeping(), "a plain container may idle"
        rig.audit()
    finally:
        rig.down()
