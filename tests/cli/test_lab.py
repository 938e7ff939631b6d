"""The product and its laboratory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli import main

PRODUCT = Path(__file__).resolve().parents[2] / "pycontrol"
DOORS = {"cli/__init__.py", "cli/lab.py", "policies/registry.py"}


def test_only_the_doors_name_the_laboratory() -> None:
    files = {f.relative_to(PRODUCT).as_posix(): f for f in PRODUCT.rglob("*.py")}
    product = [name for name in files if not name.startswith("lab/")]
    named = re.compile(r"pycontrol\.lab\b|\"\.lab\.")
    assert {name for name in product if named.search(files[name].read_text(encoding="utf-8"))} == DOORS


def test_a_command_says_what_to_install_where_the_laboratory_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycontrol.lab.workloads.marginals", None)
    done = CliRunner().invoke(main, ["workload", "show", "w1"])
    assert done.exit_code == 1
    assert done.output.startswith(
        "error: this needs the laboratory, and pycontrol.lab.workloads.marginals is missing: "
    )
    assert done.output.endswith("pip install 'isonomy[lab]'\n")


def test_without_the_laboratory_there_are_the_products_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.cli.lab.LAB", "pycontrol.no_lab")
    done = CliRunner().invoke(main, ["workload", "show"])
    assert "w2-testbed" in done.output
    assert "hived" not in done.output
