"""The page of claims: made only from stored results, and a row older than its code is marked as stale."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import sys
from pathlib import Path
from types import FrameType

import pytest
from click.testing import CliRunner

import pycontrol
from pycontrol.lab import catalogue, claims, provenance
from pycontrol.lab.experiment_command import experiment_command
from pycontrol.lab.findings_report import Entry
from pycontrol.lab.hived import safety
from pycontrol.lab.kit import Claim, Findings

SOURCES = Path(pycontrol.__file__).parent
DOCS = SOURCES.parent / "docs"


def entry(name: str = "hived-fig2", quick: bool = True) -> Entry:
    found = Findings((Claim("b1 | gets B's node.", "runs", "waits", False), Claim("other", "-", "-", None)), seeds=5)
    return Entry(name, "title", found, 1.0, quick, None, "2026-11-22")


def test_a_result_records_its_origin_and_survives_storage(tmp_path: Path) -> None:
    result = claims.result_of(entry(), "abc", provenance.code_hash("hived-fig2"))
    claims.keep(result, tmp_path)
    assert claims.read(tmp_path, catalogue.names()) == [result]
    assert (result.command, result.seeds, result.size) == ("isonomy experiment hived-fig2 --quick", 5, "quick")


def test_one_command_makes_the_page_and_names_what_is_stale(tmp_path: Path) -> None:
    results = tmp_path / "results"
    claims.keep(claims.result_of(entry(), "abc", provenance.code_hash("hived-fig2")), results)
    claims.keep(claims.result_of(entry("oef-fig9", False), "old", "0" * 16), results)
    run = CliRunner().invoke(experiment_command, ["claims", "--results", str(results)])
    assert run.exit_code == 0, run.output
    assert "2 results, 1 of them stale: oef-fig9" in " ".join(run.output.split())
    text = (tmp_path / "claims.md").read_text()
    assert "| b1 \\| gets B's node. | runs | waits | does not hold |" in text
    assert "`isonomy experiment hived-fig2 --quick`, 2026-11-22, 5 seeds, commit abc.\n" in text
    assert "`isonomy experiment oef-fig9`, 2026-11-22, 5 seeds, commit old; **stale**.\n" in text


def test_a_result_at_full_size_stands_beside_the_other_one(tmp_path: Path) -> None:
    results = tmp_path / "results"
    full = dataclasses.replace(entry(quick=False), full=True)
    for one in (entry(), full):
        claims.keep(claims.result_of(one, "abc", ""), results)
    assert [r.size for r in claims.read(results, catalogue.names())] == ["quick", "full"]
    text = claims.page(claims.read(results, catalogue.names()))
    assert "### hived-fig2\n" in text
    assert "### hived-fig2, full\n" in text


PROFILE, FIG6, VECTORS, FIG9 = "hived-profile", "hived-fig6", "oef-fig1-2", "oef-fig9"
NONE, ALL = frozenset[str](), frozenset({PROFILE, FIG6, VECTORS, FIG9})
CHANGES: list[tuple[str, str, str, frozenset[str], frozenset[str]]] = [
    ("policies/tiresias.py", "class Tiresias(Filling):", "    added = 1", frozenset({FIG6}), ALL - {FIG6}),
    ("lab/policies/slaq.py", "class Slaq(Filling):", "    added = 1", NONE, ALL),
    (
        "arbiter/core.py",
        "class Arbiter:",
        "    added = 1",
        frozenset({FIG6, FIG9}),
        frozenset({PROFILE, VECTORS}),
    ),
    ("cells/cluster_cells.py", "class Cells:", "    added = 1", frozenset({PROFILE, FIG6}), frozenset({VECTORS})),
    ("lab/hived/cell_experiments.py", "TENANTS = 11", "TENANTS = 12", frozenset({PROFILE}), ALL - {PROFILE}),
    ("lab/hived/simulated.py", "HOUR_S = 3600.0", "HOUR_S = 60.0", frozenset({FIG6}), ALL - {FIG6}),
    ("lab/kit.py", "@dataclass(frozen=True)", "# A remark.", NONE, ALL),
    (
        "lab/shares/gandiva_fair_shares.py",
        "class GandivaFairShares:",
        "    added = 1",
        frozenset({VECTORS, FIG9}),
        frozenset({PROFILE}),
    ),
    ("cli/tables.py", "from __future__ import annotations", "ADDED = 1", NONE, ALL),
]
"""File, a line in it, the text put after it, and the rows that this makes stale and not stale."""


def test_a_row_is_stale_once_code_that_decides_it_changed(tmp_path: Path) -> None:
    root = tmp_path / "pycontrol"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    today = {n: provenance.code_hash(n) for n in sorted(ALL)}
    for file, line, added, stale, fresh in CHANGES:
        text = (root / file).read_text()
        assert f"{line}\n" in text, (file, line)
        (root / file).write_text(text.replace(f"{line}\n", f"{line}\n{added}\n", 1))
        changed = {n for n in today if provenance.code_hash(n, root) != today[n]}
        assert stale <= changed, file
        assert not changed & fresh, file
        (root / file).write_text(text)


def test_the_compiled_solver_matches_the_code_that_uses_it(tmp_path: Path) -> None:
    root = tmp_path / "pycontrol"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (root / "auction/solver.c").write_text("/* another */")
    assert provenance.code_hash("themis-overheads", root) != provenance.code_hash("themis-overheads")
    assert provenance.code_hash("hived-profile", root) == provenance.code_hash("hived-profile")


def test_comments_docstrings_and_layout_decide_nothing(tmp_path: Path) -> None:
    root = tmp_path / "pycontrol"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text('"""Other words."""\n# A remark.\n' + text, encoding="utf-8")
    assert [
        n for n in ("hived-profile", "themis-overheads") if provenance.code_hash(n, root) != provenance.code_hash(n)
    ] == []


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        pytest.param("TraceCase", "DrawnCase", False, id="a renamed class"),
        pytest.param("delay_s", "lateness_s", False, id="a renamed field"),
        pytest.param("ceil", "trunc", True, id="another function of a library"),
        pytest.param("max", "min", True, id="another builtin function"),
    ],
)
def test_a_name_of_our_own_decides_nothing(tmp_path: Path, old: str, new: str, changes: bool) -> None:
    root = tmp_path / "pycontrol"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in root.rglob("*.py"):
        file.write_text(re.sub(rf"\b{old}\b", new, file.read_text(encoding="utf-8")), encoding="utf-8")
    assert (provenance.code_hash("hived-safety", root) != provenance.code_hash("hived-safety")) is changes


def test_a_modules_name_decides_nothing(tmp_path: Path) -> None:
    root = tmp_path / "pycontrol"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for folder, old, new in (("arbiter/round", "standin", "unmanaged_bids"), ("policies", "salvage", "wasted_work")):
        (root / folder / f"{old}.py").rename(root / folder / f"{new}.py")
        for file in root.rglob("*.py"):
            file.write_text(re.sub(rf"(?<!\")\b{old}\b", new, file.read_text(encoding="utf-8")), encoding="utf-8")
    assert provenance.code_hash("hived-fig6", root) == provenance.code_hash("hived-fig6")


def test_every_experiment_has_code_that_decides_it() -> None:
    tree = provenance.PackageTree(SOURCES)
    for name in catalogue.names():
        module, _, function = catalogue.EXPERIMENTS[name].partition(":")
        found = tree.reached((module, function))
        assert (module, function) in found
        assert ("pycontrol.lab.kit", "Findings") in found
        assert claims.folder_of(name) in claims.PAPERS


def test_all_functions_that_an_experiment_runs_are_in_its_hash() -> None:
    """Checks the functions that a run really calls, without generated ones and those that only write tables."""
    found = provenance.PackageTree(SOURCES).reached(("pycontrol.lab.hived.safety", "random_trace"))
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        code = frame.f_code
        if (
            event == "call" and module.startswith("pycontrol.") and code.co_flags & inspect.CO_OPTIMIZED
        ):  # no class's body
            name = code.co_qualname.partition(".")[0]
            called.add((module, name))

    sys.setprofile(note)
    try:
        safety.random_trace(1, 10)
    finally:
        sys.setprofile(None)
    known = {(of, name) for of, name in found}
    strange = {(m, n) for m, n in called - known if not n.startswith(("<", "__"))}
    assert strange == set()
    assert len(called) > 200


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"name": "x", "claims": [[1]]})])
def test_an_invalid_result_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "hived-fig2.json").write_text(text)
    run = CliRunner().invoke(experiment_command, ["claims", "--results", str(tmp_path)])
    assert run.exit_code == 1
    assert "hived-fig2.json" in run.output.replace("\n", "")


def test_the_page_in_the_docs_holds_the_kept_results_and_nothing_else() -> None:
    """Staleness aside, which changes with the code."""
    results = claims.read(DOCS / "results", catalogue.names())
    today, kept = claims.page(results), (DOCS / "claims.md").read_text(encoding="utf-8")
    assert kept.replace("; **stale**", "") == today.replace("; **stale**", "")
