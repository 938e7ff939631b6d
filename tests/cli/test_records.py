"""`isonomy audit` and `isonomy report` on files."""

import itertools
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from pycontrol.cli import main
from pycontrol.runtime.journal import SqliteJournal
from tests.web.scene import Scene


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene(run_s=4000)


@pytest.fixture
def cluster(tmp_path: Path, scene: Scene) -> Path:
    """A directory like a dev-cluster's after a run."""
    state = tmp_path / "isonomy"
    journal = SqliteJournal(state / "journal.sqlite")
    for time_s, facts in itertools.groupby(scene.yarn_facts(), key=lambda x: x[1]):
        journal.append([fact for _, _, fact in facts], time_s)
    journal.close()
    (tmp_path / "nm").mkdir()
    (tmp_path / "nm" / "isonomy-evidence.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in scene.world.evidence))
    (tmp_path / "isonomy.yaml").write_text(yaml.safe_dump({"state_dir": "isonomy"}))
    machines = [{"name": "a", "machines": [{"host": "n1", "gpus": 12}]}]
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump({"racks": machines}))
    roles = {
        "resourcemanager": {"log": str(tmp_path / "rm.log"), "data": str(tmp_path / "rm")},
        "nodemanager-0": {"data": str(tmp_path / "nm"), "log": ""},
    }
    (tmp_path / "cluster.json").write_text(
        json.dumps(
            {
                "roles": roles,
                "isonomy_yaml": str(tmp_path / "isonomy.yaml"),
                "topology": str(tmp_path / "topology.yaml"),
            }
        )
    )
    return tmp_path


def isonomy(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_the_audit_of_a_good_run_is_clean(cluster: Path) -> None:
    result = isonomy("audit", "--cluster-dir", str(cluster))
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "clean"
    assert "NOT CHECKED unknown_to_yarn" in result.output


def test_an_audit_without_evidence_is_not_clean(cluster: Path) -> None:
    (cluster / "nm" / "isonomy-evidence.jsonl").unlink()
    result = isonomy("audit", "--cluster-dir", str(cluster))
    assert result.exit_code == 1
    assert "NOT CHECKED gpu_in_two_containers" in result.output
    assert "not everything was checked" in result.output


def test_an_audit_finds_what_is_wrong_in_the_evidence(cluster: Path) -> None:
    file = cluster / "nm" / "isonomy-evidence.jsonl"
    lines = [json.loads(x) for x in file.read_text().splitlines()]
    container = lines[0]["container"]
    for line in lines:
        if line["container"] == container:
            line["gpu_ids"] = [7]
    file.write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    result = isonomy("audit", "--cluster-dir", str(cluster), "-o", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {v["kind"] for v in found["violations"]} == {"gpu_ids_differ", "container_without_lease"}
    assert all(container in v["what"] for v in found["violations"])


def test_the_report_of_a_cluster_directory_counts_gpus_and_apps(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "report.json"
    result = isonomy("report", "--cluster-dir", str(cluster), "--out", str(out))
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert report["cluster_gpus"] == 12
    assert len(report["apps"]) == 3
    assert {"checked", "violations"} <= set(report["audit"])
    for app in report["apps"]:
        assert app["name"] in result.stdout
    journal = str(cluster / "isonomy" / "journal.sqlite")
    assert isonomy("report", "--journal", journal).exit_code == 2
    assert json.loads(isonomy("report", "--journal", journal, "--gpus", "4", "-o", "json").stdout)["cluster_gpus"] == 4


def test_what_is_no_journal_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_text("hello\n" * 200)
    for args, code in (
        (["--journal", str(tmp_path / "missing")], 2),
        (["--journal", str(tmp_path / "no.sqlite")], 1),
        (["--cluster-dir", str(tmp_path)], 2),
    ):
        result = isonomy("audit", *args)
        assert result.exit_code == code
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
