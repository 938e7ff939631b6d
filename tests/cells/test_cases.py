"""The cells cases through `isonomy solve`: each step that is a property holds, errors change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pycontrol.cli import main
from pycontrol.lab.solve.replay_command import replay_command

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


def test_a_preview_of_cells_names_the_shortfall_and_what_is_left(tmp_path: Path) -> None:
    file, hosts = tmp_path / "cells.yaml", "levels: {switch: 2, node: 2}\nhosts: [n1, n2]\nvirtual_clusters:\n"

    def said(text: str, *words: str) -> Result:
        file.write_text(text)
        env = {"ISONOMY_RM": None, "HADOOP_CONF_DIR": None}
        return CliRunner().invoke(main, [*(words or ("preview", "--cells")), str(file), "-o", "json"], env=env)

    fits = said(f"{hosts}  root.a: {{node: 1}}\n  root.b: {{switch: 2}}\n")
    assert json.loads(fits.stdout)["cells"]["chains"][0]["spare"] == {"gpu": 0, "switch": 0, "node": 0}
    short = said(f"{hosts}  root.a: {{node: 1}}\n  root.b: {{node: 2}}\n")
    assert short.exit_code == 1
    assert "falls short by 1" in short.stderr
    wrong = said("levles: {node: 2}\nvirtual_clusters: {}\n")
    assert wrong.exit_code == 1
    assert "levles: unknown key, did you mean levels?" in wrong.stderr
    for former in ("check", "plan", "show"):
        assert "is now: isonomy preview --cells" in said("", "cells", former).stderr
