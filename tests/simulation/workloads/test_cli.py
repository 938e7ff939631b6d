"""`isonomy workload`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from pycontrol.cli import main
from pycontrol.lab.workloads import CATALOGUE, load


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["workload", *args])


def test_the_list_names_everything_with_its_options() -> None:
    found = json.loads(run("show", "-o", "json").output)
    assert [g["name"] for g in found["generators"]] == list(CATALOGUE.generators)
    assert len(found["formats"]) == len(CATALOGUE.formats)
    text = run("show").output
    assert "contention=1.0" in text
    assert "philly:FILE" in text


def test_show_prints_ours_beside_the_papers_and_writes_what_is_read_back(tmp_path: Path) -> None:
    out = tmp_path / "w.csv"
    done = run("show", "w1", "--seed", "3", "--set", "count=20", "--out", str(out), "-o", "json")
    found = json.loads(done.output)
    assert found["written"] == str(out)
    assert {"name": "apps", "ours": 20, "paper": 85, "source": "2.2"} in found["marginals"]
    assert load(out) == load("w1", 3, count=20)
    assert "PAPER" in run("show", "w1").output


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    for args, said in (
        (("w9",), "is no file and none of"),
        (("w1", "--set", "count"), "must be OPTION=VALUE"),
        (("w1", "--out", str(tmp_path / "no" / "w.csv")), "No such file"),
    ):
        done = run("show", *args)
        assert done.exit_code != 0
        assert said in done.output
        assert "Traceback" not in done.output
