"""docs/operations.md: its commands run as they stand there, and what it quotes is what the programs say."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.arbiter.ledger.facts import Switched
from pycontrol.cli import main
from pycontrol.hadoopconf import render
from pycontrol.runtime.journal import SqliteJournal
from tests.cli.conftest import ADMIN, Rm, rm
from tests.web.scene import EARLY

__all__ = ["rm"]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SYMPTOMS = PAGE.partition("## Symptom")[2].partition("\n## ")[0]
BLOCK = "\n".join(re.findall(r"```\n(.*?)```", PAGE, re.DOTALL))
LINES = [line.partition("#")[0].strip() for line in BLOCK.splitlines()]
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
COMMANDS = sorted({c for c in [*LINES, *SPANS] if c.startswith("isonomy ")})
OTHERS = sorted({c for c in [*LINES, *SPANS] if re.match(r"(systemctl|journalctl|yarn|hdfs|chronyc|ss|df|fuser) ", c)})
QUOTED = sorted(set(re.findall(r'"([^"|]+)"', SYMPTOMS)))
REFUSED = {
    "isonomy preflight",
    "isonomy cells apply CELLS",
    "isonomy cells apply",
    "isonomy mode",
    "isonomy mode on",
    "isonomy mode off",
}
"""They say what is wrong with the machine of the test, and that its cluster has no virtual clusters and no plugin."""


def test_the_page_is_two_screens() -> None:
    assert len(PAGE.splitlines()) <= 105
    assert len(COMMANDS) >= 15
    assert len(OTHERS) >= 12


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """What the page's placeholders stand for."""
    render.write(render.render({"yarn": {"hadoop": "3.4"}}), tmp_path / "conf")
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    journal.append([Switched("paused", True, "root", time.time() - 3600.0)], time.time() - 3600.0)
    journal.close()
    cells = tmp_path / "cells.yaml"
    cells.write_text("levels: {switch: 2, node: 2}\nhosts: [n1, n2]\nvirtual_clusters: {root.a: {node: 1}}\n")
    return {
        "APP": EARLY,
        "NODE": "n2",
        "DIR": str(tmp_path / "conf"),
        "CELLS": str(cells),
        "FILE": str(tmp_path / "journal.sqlite"),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_page_runs(command: str, rm: Rm, world: dict[str, str]) -> None:
    words = [world.get(word, word) for word in shlex.split(command)[1:]]
    env = {"ISONOMY_RM": rm.address, "HADOOP_USER_NAME": ADMIN, "HADOOP_CONF_DIR": world["DIR"]}
    result = CliRunner().invoke(main, words, env=env)
    assert result.exit_code in ((0, 1) if command in REFUSED else (0,)), result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_the_page_quotes_is_said_by_a_program(quoted: str) -> None:
    """Messages are put together from literals: the quote is in one, after joining those of adjacent lines."""
    assert quoted in SAID


def said() -> str:
    """The text of all literals of the product."""
    files = [
        f
        for folder in ("pycontrol", "yarn-plugin", "submarine_patch")
        for f in (ROOT / folder).rglob("*")
        if f.suffix in (".py", ".java") and "/test/" not in str(f)
    ]
    text = "\n".join(f.read_text(encoding="utf-8") for f in files)
    return re.sub(r'"\s*\+?\s*f?"', "", text)


SAID = said()


@pytest.mark.parametrize("command", OTHERS)
def test_units_and_files_of_the_page_are_those_of_the_package(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "systemctl":
        assert words[1] in ("status", "start", "stop", "restart", "reset-failed")
        assert (ROOT / "packaging" / f"{words[2]}.service").is_file()
    elif words[0] == "journalctl":
        assert words[1:3] == ["-u", "isonomy"]
    elif words[0] == "yarn":
        assert words[1] in ("rmadmin", "node", "application", "applicationattempt", "container", "nodeattributes")
    for path in (w for w in words if w.startswith("/var/lib/isonomy")):
        assert Path(path).name in ("isonomy", "journal.lock")


def test_a_unit_that_gives_up_is_started_as_the_page_says() -> None:
    unit = (ROOT / "packaging" / "isonomy.service").read_text()
    burst, interval = (
        int(re.search(rf"{key}=(\d+)", unit)[1])  # type: ignore[index]
        for key in ("StartLimitBurst", "StartLimitIntervalSec")
    )
    assert (burst, interval) == (10, 300)
    assert "After ten failures in five minutes systemd gives up: `systemctl reset-failed isonomy`" in PAGE
