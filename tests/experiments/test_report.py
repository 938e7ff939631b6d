"""Reports of an experiment's findings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pycontrol.lab import catalogue
from pycontrol.lab.experiment_command import experiment_command
from pycontrol.lab.findings_report import Entry, as_json, markdown, read, write, write_pages
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table


def found(setup: Setup) -> Findings:
    """A made-up experiment.

    For tests.
    """
    setup.note("half way")
    return Findings(
        claims=(Claim("a < b.", "2.0", "1.5", False, "Because."), Claim("not here.", "1", "-", None)),
        tables=(Table("Numbers", ("a", "b"), ((1.23456, "x"), (math.nan, None))),),
        figures=(Figure("f", "F", "x", "y", (Series("s", [1, 2], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5]),), mark=1.0),),
        conventions=("one thing",),
        seeds=len(setup.seeds_of(8, 2)),
    )


@pytest.fixture
def entry() -> Entry:
    return Entry("made-up", "A made-up experiment", found(Setup()), 1.0, False)


def test_json_has_no_nan(entry: Entry) -> None:
    data = json.loads(as_json(entry), parse_constant=lambda c: pytest.fail(c))
    assert data["findings"]["tables"][0]["rows"] == [[1.23456, "x"], [None, None]]
    assert data["findings"]["claims"][0]["holds"] is False


@pytest.mark.parametrize("said", ["**does not hold**", "| 1.235 | x |", "8 seeds", "Assumed: one thing"])
def test_markdown_says(entry: Entry, said: str) -> None:
    assert said in markdown(entry)


def test_a_report_is_one_page_with_its_figures(entry: Entry, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert write(entry, tmp_path) == []
    write_pages([entry], tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert 'src="made-up-f.png"' in page
    assert (tmp_path / "made-up-f.png").stat().st_size > 1000
    report = (tmp_path / "report.md").read_text()
    assert report.index("| made-up |") < report.index("## made-up")


def without_data(setup: Setup) -> Findings:
    """The same, of a trace that is not there."""
    assert setup.trace("none.csv") is None
    return found(setup)


def test_the_command_runs_and_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"made-up": "tests.experiments.test_report:found"})
    run = CliRunner()
    listed = run.invoke(experiment_command, ["list", "-o", "json"])
    assert json.loads(listed.output) == {"made-up": "A made-up experiment"}
    shown = run.invoke(experiment_command, ["made-up", "--quick", "--report", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "does not hold" in shown.output
    assert json.loads((tmp_path / "made-up.json").read_text())["findings"]["seeds"] == 2
    wrong = run.invoke(experiment_command, ["made-ip"])
    assert wrong.exit_code == 2
    assert "did you mean made-up?" in wrong.output


def test_a_report_grows_and_continues_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = {"first": "tests.experiments.test_report:found", "second": f"{__name__}:{without_data.__name__}"}
    monkeypatch.setattr(catalogue, "EXPERIMENTS", names)

    def run(*words: str) -> Result:
        return CliRunner().invoke(experiment_command, [*words, "--report", str(tmp_path)])

    assert run("second").exit_code == 0
    assert "kept" not in run("first").output
    page = (tmp_path / "index.html").read_text()
    assert page.index('id="first"') < page.index('id="second"'), "all that lies there, in their order"
    again = run("all", "--resume")
    assert again.exit_code == 0, again.output
    assert again.output.count(": kept, of 20") == 2
    assert "does not hold" in again.output
    again = run("all", "--resume", "--data", str(tmp_path))
    assert "first: kept" in again.output, "no data tries its last claim"
    assert again.output.count(": kept") == 1
    assert ": kept" not in run("all", "--resume", "--seeds", "3").output, "other options"
    (tmp_path / "second.json").write_text("{")
    assert run("all", "--resume", "--seeds", "3").output.count(": kept") == 1
    (tmp_path / "second.json").write_text("{")
    broken = run("first")
    assert broken.exit_code == 1
    assert "a report of another version" in broken.output


def test_a_report_that_cannot_be_written_is_said_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"made-up": "tests.experiments.test_report:found"})
    (tmp_path / "file").write_text("")
    run = CliRunner().invoke(experiment_command, ["made-up", "--report", str(tmp_path / "file" / "below")])
    assert (run.exit_code, "does not hold" in run.output) == (2, False), run.output
    (tmp_path / "made-up.json").mkdir()
    run = CliRunner().invoke(experiment_command, ["made-up", "--report", str(tmp_path)])
    assert (run.exit_code, "does not hold" in run.output) == (1, True), run.output
    assert "made-up.json: Is a directory" in run.output.replace("\n", "")


def test_a_log_file_shows_progress_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"made-up": "tests.experiments.test_report:found"})
    run = CliRunner()
    assert "half way" not in run.invoke(experiment_command, ["made-up"]).stderr
    monkeypatch.setattr("pycontrol.lab.experiment_command.LINE_EVERY_S", 0.0)
    assert "made-up: half way" in run.invoke(experiment_command, ["made-up"]).stderr


def test_resume_needs_a_report() -> None:
    said = CliRunner().invoke(experiment_command, ["all", "--resume"])
    assert said.exit_code == 2
    assert "--report DIR" in said.output


def test_a_written_report_reads_back_the_same(entry: Entry, tmp_path: Path) -> None:
    write(entry, tmp_path)
    assert markdown(read(tmp_path / "made-up.json")) == markdown(entry)
