"""The cells cases through `isonomy solve`: each step that is a property holds, errors change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli.cells import cells_group
from pycontrol.lab.solve.command import replay_command

FILES = sorted((Path(__file__).parent.parent / "cases" / "cells").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
@pytest.mark.parametrize("forced", [True, False])
def test_case(file: Path, forced: bool) -> None:
    done = CliRunner().invoke(replay_command, [str(file), "--json", *(["--forced"] if forced else [])])
    assert done.exit_code == 0, done.output
    answers = {a["step"]: a["result"] for a in map(json.loads, done.stdout.splitlines())}
    for step in json.loads(file.read_text())["steps"]:
        got, want = answers[step["step"]], step.get("expect")
        if step["op"] == "schedule":
            facts = step.get("property") or want
            assert got["outcome"] == facts["outcome"], step
            if "nodes_any_of" in facts:
                assert got["node"] in facts["nodes_any_of"]
            if "victim_groups" in facts:
                assert set(got["victim_groups"]) <= set(facts["victim_groups"])
        elif step["op"] == "assert_vc_cells":
            assert got[want]
            assert not got["bad" if want == "healthy" else "healthy"]
        elif step["op"] == "assert_group":
            assert got["exists"] == want["exists"]
        elif step["op"] == "assert_all_free":
            assert got == {"used": 0, "reserved": 0}


def test_check_and_plan_name_the_shortfall(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    file.write_text("levels: {switch: 2, node: 2}\nhosts: [n1, n2]\nvirtual_clusters:\n  root.a: {node: 1}\n")
    assert CliRunner().invoke(cells_group, ["check", str(file)]).exit_code == 0
    assert CliRunner().invoke(cells_group, ["check", str(file)]).exit_code == 0
    fits = CliRunner().invoke(cells_group, ["check", str(file), "--add", "root.b:switch:2", "-o", "json"])
    assert json.loads(fits.stdout)["chains"][0]["spare"] == {"gpu": 0, "switch": 0, "node": 0}
    short = CliRunner().invoke(cells_group, ["plan", str(file), "--add", "root.b:node:2"])
    assert short.exit_code == 1
    assert "falls short by 1" in short.stderr
    file.write_text("levles: {node: 2}\nvirtual_clusters: {}\n")
    wrong = CliRunner().invoke(cells_group, ["check", str(file)])
    assert wrong.exit_code == 1
    assert "levles: unknown key, did you mean levels?" in wrong.stderr
