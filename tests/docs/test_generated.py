"""Generated pages are what would be generated now, links between documents lead somewhere, examples are accepted."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from submarine_patch.cli import check
from submarine_patch.cli.options import parse_run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_commands_and_configuration_are_documented_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{target}: there is no such file"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}: {found.name} has no such heading"


def test_each_example_of_submarine_job_run_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import isonomy\n")
    (tmp_path / "space.yaml").write_text("parameters: {learning-rate: {type: float, min: 0.003, max: 0.3}}\n")
    monkeypatch.chdir(tmp_path)
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    examples = re.findall(r"^ *submarine job run (--name (?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert len(examples) >= 9
    for example in examples:
        check(parse_run(shlex.split(example.replace("\\\n", " "))))


def anchors(page: Path) -> set[str]:
    """Headings as GitHub and mkdocs name them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", h).lower()).strip().replace(" ", "-") for h in heads}


def test_each_key_of_the_configuration_is_described() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \|.*\| *([^|]*?) *\|$", (ROOT / "docs/config.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) > 100
    assert [key for key, text in rows if not text] == []
