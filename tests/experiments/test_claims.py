"""The page of claims: made from kept results alone, and no row is older than its code unseen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import pycontrol
from pycontrol.cli.experiment import experiment_command
from pycontrol.experiments import catalogue, claims
from pycontrol.experiments.kit import Claim, Findings
from pycontrol.experiments.report import Entry

SOURCES = Path(pycontrol.__file__).parent
DOCS = SOURCES.parent / "docs"


def entry(name: str = "hived-fig2", quick: bool = True) -> Entry:
    found = Findings((Claim("b1 | gets B's node.", "runs", "waits", False), Claim("other", "-", "-", None)), seeds=5)
    return Entry(name, "title", found, 1.0, quick, None, "2026-11-22")


def test_a_result_says_what_it_was_found_with_and_comes_back_as_it_was(tmp_path: Path) -> None:
    result = claims.result_of(entry(), "abc", claims.code_hash("hived-fig2"))
    claims.keep(result, tmp_path)
    assert claims.read(tmp_path, catalogue.names()) == [result]
    assert (result.command, result.seeds, result.size) == ("isonomy experiment hived-fig2 --quick", 5, "quick")


def test_one_command_makes_the_page_and_names_what_is_stale(tmp_path: Path) -> None:
    results = tmp_path / "results"
    claims.keep(claims.result_of(entry(), "abc", claims.code_hash("hived-fig2")), results)
    claims.keep(claims.result_of(entry("oef-fig9", False), "old", "0" * 16), results)
    run = CliRunner().invoke(experiment_command, ["claims", "--results", str(results)])
    assert run.exit_code == 0, run.output
    assert "2 results, 1 of them stale: oef-fig9" in " ".join(run.output.split())
    text = (tmp_path / "claims.md").read_text()
    assert "| b1 \\| gets B's node. | runs | waits | does not hold |" in text
    assert "`isonomy experiment hived-fig2 --quick`, 2026-11-22, 5 seeds, commit abc.\n" in text
    assert "`isonomy experiment oef-fig9`, 2026-11-22, 5 seeds, commit old; **stale**.\n" in text


@pytest.mark.parametrize(
    ("changed", "hived", "oef"),
    [
        ("policies/tiresias.py", True, True), ("auction/solver.c", True, True),
        ("experiments/hived/cells.py", True, False), ("cli/tables.py", False, False),
    ],
)  # fmt: skip
def test_a_row_is_stale_once_code_that_it_depends_on_changed(
    tmp_path: Path, changed: str, hived: bool, oef: bool
) -> None:
    root = tmp_path / "pycontrol"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    before = {name: claims.code_hash(name, root) for name in ("hived-fig2", "oef-fig9")}
    assert before == {name: claims.code_hash(name) for name in before}
    assert (root / changed).exists()
    with (root / changed).open("a") as file:
        file.write("\n")
    assert (claims.code_hash("hived-fig2", root) != before["hived-fig2"]) is hived
    assert (claims.code_hash("oef-fig9", root) != before["oef-fig9"]) is oef


def test_every_folder_that_is_hashed_is_there() -> None:
    for name in catalogue.names():
        assert claims.folder_of(name) in claims.PAPERS
        assert (SOURCES / "experiments" / claims.folder_of(name)).is_dir()
    assert all((SOURCES / folder).is_dir() for folder in claims.SHARED)


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"name": "x", "claims": [[1]]})])
def test_what_is_no_result_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "hived-fig2.json").write_text(text)
    run = CliRunner().invoke(experiment_command, ["claims", "--results", str(tmp_path)])
    assert run.exit_code == 1
    assert "hived-fig2.json" in run.output.replace("\n", "")


def test_the_page_in_the_docs_holds_the_kept_results_and_nothing_else() -> None:
    """Staleness aside, which changes with the code."""
    results = claims.read(DOCS / "results", catalogue.names())
    today, kept = claims.page(results), (DOCS / "claims.md").read_text(encoding="utf-8")
    assert kept.replace("; **stale**", "") == today.replace("; **stale**", "")
