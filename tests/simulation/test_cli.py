"""`isonomy simulate`: a comparison of metrics, files, and errors with a remedy."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pycontrol.lab.simulate import simulate_command
from pycontrol.simulation.trace_apps import TraceApp, Workload


def load(name: str, seed: int) -> Workload:
    if name not in ("tiny", "single"):
        raise ValueError(f"{name}: no such workload")
    most = 2 if name == "tiny" else 1
    apps = tuple(TraceApp(f"a{i}", 100.0 * i + seed, 1 + i % most, ((400.0, 300.0),)) for i in range(6))
    return Workload(name, apps)


@pytest.fixture(autouse=True)
def _workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.lab.workloads.load", load)


def simulate(*arguments: str) -> Result:
    base = ["--workload", "tiny", "--cluster", "2x2", "--seeds", "2", "--processes", "1"]
    return CliRunner().invoke(simulate_command, [*base, *arguments])


def test_policies_are_compared_in_one_table() -> None:
    run = simulate("--policy", "tiresias,srtf", "-o", "json", "--set", "tiresias.greedy=true", "--set", "restart_s=0")
    assert run.exit_code == 0, run.output
    data = json.loads(run.output)
    assert data["seeds"] == [1, 2]
    assert data["policies"]["tiresias"]["options"] == {"greedy": "true"}
    assert data["policies"]["srtf"]["options"] == {}
    assert data["metrics"]["tiresias"]["rho_max"]["ratio"] is None
    assert data["metrics"]["srtf"]["rho_max"]["ratio"]["mean"] > 0
    assert data["metrics"]["srtf"]["unfinished"]["values"] == [0.0, 0.0]
    table = simulate("--policy", "tiresias,srtf").output
    assert "srtf / tiresias" in table
    assert "max rho" in table


def test_one_gpu_is_no_plural() -> None:
    run = simulate("--policy", "tiresias,srtf", "--workload", "single", "--cluster", "1x1")
    assert "single: 6 apps on 1 GPU; 2 seeds;" in run.output


def test_contention_either_way_slows_apps_down() -> None:
    def completion(*arguments: str) -> float:
        data = json.loads(simulate("--policy", "tiresias", "-o", "json", *arguments).output)
        return float(data["metrics"]["tiresias"]["completion_mean_s"]["mean"])

    base = completion()
    assert completion("--contention", "2") > base
    assert completion("--contention", "2", "--contended-by", "machines") > base


def test_files_hold_every_run_and_app(tmp_path: Path) -> None:
    run = simulate("--policy", "tiresias", "--out", str(tmp_path / "out"))
    assert run.exit_code == 0, run.output
    rows = list(csv.DictReader((tmp_path / "out" / "apps.csv").open()))
    assert len(rows) == 12
    assert {r["seed"] for r in rows} == {"1", "2"}
    assert len(list(csv.DictReader((tmp_path / "out" / "runs.csv").open()))) == 2
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["apps"] == 6
    assert (tmp_path / "out" / "rho.png").stat().st_size > 1000


def test_a_file_that_cannot_be_written_costs_no_results(tmp_path: Path) -> None:
    (tmp_path / "rho.png").mkdir()
    run = simulate("--policy", "tiresias", "--out", str(tmp_path))
    assert run.exit_code == 2
    assert run.output.index("max rho") < run.output.index("rho.png: Is a directory")
    run = simulate("--policy", "tiresias", "--out", str(tmp_path / "runs.csv" / "below"))
    assert run.exit_code == 2
    assert "max rho" not in run.output, "it is said before the first run"
    assert "runs.csv" in run.output


def test_without_matplotlib_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pycontrol.lab.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = simulate("--policy", "tiresias", "--out", str(tmp_path))
    assert run.exit_code == 0
    assert "isonomy[lab]" in run.output
    assert (tmp_path / "runs.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "tiresais"], "did you mean tiresias"),
        (["--set", "colour=red"], "known are"),
        (["--set", "f=much"], "number"),
        (["--set", "lease"], "OPTION=VALUE"),
        (["--set", "lease_timing=spread"], "is not an option"),
        (["--set", "restart_s=-1"], "greater than or equal to 0"),
        (["--set", "checkpoint_every_s=0"], "greater than 0"),
        (["--set", "srtf.packing=tight"], "srtf is not among the policies"),
        (["--cluster", "nowhere"], "testbed-64"),
        (["--workload", "nothing"], "no such workload"),
        (["--policy", "drf,drf"], "different policies"),
    ],
    ids=lambda x: x if isinstance(x, str) else " ".join(x),
)
def test_errors_name_the_option(arguments: list[str], says: str) -> None:
    run = simulate(*arguments)
    assert run.exit_code == 2
    assert says in run.output


CELLS = """
levels: {node: 2}
virtual_clusters:
  root.a: {node: 1, policy: tiresias}
  root.b: {node: 1, policy: yarn_cs, shadow: true}
"""


def two_queues(name: str, seed: int) -> Workload:
    apps = [TraceApp(f"a{i}", 60.0 * i, 1, ((400.0,),), queue="root.a") for i in range(6)]
    return Workload("queues", (*apps, TraceApp("b", 150.0, 2, ((400.0,),), queue="root.b")))


def test_a_queue_of_only_some_seeds_apps_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(name: str, seed: int) -> Workload:
        return Workload("drawn", (TraceApp("a", 0.0, 1, ((400.0,),), queue=f"root.q{seed}"),))

    monkeypatch.setattr("pycontrol.lab.workloads.load", drawn)
    run = simulate("--policy", "tiresias")
    assert run.exit_code == 0, run.output


def test_the_accounts_of_an_isonomy_yaml_share_the_cluster(tmp_path: Path) -> None:
    """The last app's user has nearly all of the ideal."""
    file = tmp_path / "isonomy.yaml"
    file.write_text("accounts: {first: {weight: 100, users: {a5: {}}}}")

    def end_s(*more: str) -> float:
        run = simulate("--policy", "isonomy", "--cluster", "1x2", "--out", str(tmp_path / "out"), *more)
        assert run.exit_code == 0, run.output
        rows = csv.DictReader((tmp_path / "out" / "apps.csv").read_text().splitlines())
        return max(float(row["finished_s"]) for row in rows if row["app_id"] == "a5")

    assert end_s("--accounts", str(file)) < end_s()
    file.write_text("accounts: {first: {wieght: 100}}")
    wrong = simulate("--accounts", str(file))
    assert (wrong.exit_code, "did you mean weight?" in wrong.output) == (2, True), wrong.output


def test_an_apps_queue_is_its_virtual_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.lab.workloads.load", two_queues)
    (tmp_path / "cells.yaml").write_text(CELLS)
    run = simulate("--cells", str(tmp_path / "cells.yaml"), "--out", str(tmp_path / "out"), "--seeds", "1")
    assert run.exit_code == 0, run.output
    with (tmp_path / "out" / "apps.csv").open(encoding="utf-8") as file:
        rows = {row["app_id"]: row for row in csv.DictReader(file)}
    assert rows["b"]["cluster_gpus"] == "2"
    assert float(rows["b"]["guaranteed_after_s"]) < 90.0, "within one revocation"
    assert all(float(row["finished_s"]) > 0 for row in rows.values())
    assert float(rows["b"]["shadow_finished_s"]) == pytest.approx(350.0, abs=2.0), "alone on its node"
    assert all(float(row["shadow_finished_s"]) > 0 for row in rows.values())
    late_s = max(float(row["finished_s"]) - float(row["shadow_finished_s"]) for row in rows.values())
    assert f"no app ended later than {max(0.0, late_s):.0f} s after its end on its private cluster" in run.output
    borrowed = [row for row in rows.values() if row["guaranteed_after_s"] == ""]
    assert all(row["queue"] == "root.a" for row in borrowed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("levels: {node: 3}\nvirtual_clusters: {root.a: {node: 1}}\n", "a node has 3 GPUs"),
        ("levels: {node: 2}\nvirtual_clusters: {root.a: {node: 9}}\n", "falls short"),
        ("levels: {node: 2}\nvirtual_clusters: {root.a: {node: 1, policy: nope}}\n", "there is no policy nope"),
        (
            "levels: {node: 2}\nvirtual_clusters: {root.a: {node: 1, policy: slaq, private_schedule: true}}\n",
            "private_schedule: true: is for the policies",
        ),
        ("levels: {node: 2}\nhosts: [elsewhere]\nvirtual_clusters: {root.a: {node: 1}}\n", "no machine elsewhere"),
    ],
)
def test_a_cells_file_that_does_not_fit_the_cluster_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "cells.yaml").write_text(text)
    run = simulate("--cells", str(tmp_path / "cells.yaml"))
    assert run.exit_code == 2
    assert says in " ".join(run.output.split())
