"""Maven's downloads are one line of progress, and its errors are seen; the rest is kept in a file."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev-cluster"))

from devcluster import REPO, maven

SAID = """\
[INFO] Scanning for projects...
Downloading from central: https://repo/a/1/a-1.pom
Downloaded from central: https://repo/a/1/a-1.pom (500 kB at 3.1 MB/s)
Downloaded from central: https://repo/a/1/a-1.jar (1.5 MB at 9.2 MB/s)
Downloaded from mirror: https://repo/b/1/b-1.jar (512 B at 1 kB/s)
[WARNING] a plugin is old
"""


def said_by(maven_says: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs maven.py as the Makefile does, with a `mvn` that says this and fails if it says ERROR."""
    mvn = folder / "mvn"
    (folder / "said").write_text(maven_says)
    mvn.write_text(f"#!/bin/sh\ncat {folder}/said\n! grep -q ERROR {folder}/said\n")
    mvn.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-S", str(Path(maven.__file__)), "package"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_downloads_are_one_line_and_the_log_has_the_rest(tmp_path: Path) -> None:
    done = said_by(SAID, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.strip().startswith("Maven downloaded 2 jars, 2.0 MB in all")
    assert maven.LOG.read_text() == SAID


def test_maven_is_silent_where_all_is_there(tmp_path: Path) -> None:
    done = said_by("\x1b[0m\x1b[0m[INFO] Building\n[INFO] BUILD SUCCESS\n\x1b[0m\x1b[0m\n", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_errors_come_with_the_lines_that_belong_to_them(tmp_path: Path) -> None:
    done = said_by(f"{SAID}[ERROR] A.java:[3,1] no\n  symbol: x\n[INFO] done\nnoise\n", tmp_path)
    assert done.returncode == 1
    assert done.stdout == "[ERROR] A.java:[3,1] no\n  symbol: x\n"
    assert done.stderr.splitlines()[-1] == f"mvn failed; all that it said: {maven.LOG}"


def test_what_keeps_maven_from_starting_is_shown(tmp_path: Path) -> None:
    done = said_by("The JAVA_HOME environment variable is not defined correctly\nERROR\n", tmp_path)
    assert done.returncode == 1
    assert "JAVA_HOME" in done.stdout


def test_a_terminal_has_one_line_with_the_present_download(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(maven, "EVERY_S_ON_A_TERMINAL", 0.0)
    downloads = maven.Downloads()
    for line in SAID.splitlines():
        downloads.read(line)
    downloads.done()
    _, first, *_, last = screen.getvalue().split("\r")
    assert "0 jars, 0.0 MB in all" in first
    assert "now a-1.pom" in first
    assert "now" not in last
    assert screen.getvalue().count("\n") == 1
    assert all(len(text.removesuffix(maven.CLEAR)) < 80 for text in screen.getvalue().rstrip("\n").split("\r"))


def test_make_packs_jars_only_if_a_source_is_newer(tmp_path: Path) -> None:
    shutil.copy(REPO / "Makefile", tmp_path)
    said = subprocess.run(["make", "-pn", "java"], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    (jars,) = (line.partition(":= ")[2].split() for line in said.splitlines() if line.startswith("JARS := "))
    sources = [
        "pom.xml",
        "yarn-plugin/rm/pom.xml",
        "submarine_patch/java/am/src/main/A.java",
        "pycontrol/wire/v1/a.proto",
    ]
    for name in (*jars, *sources):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def packs(newer: str) -> bool:
        for name in (*jars, *sources):
            os.utime(tmp_path / name, (1e9, 1e9 + (name in jars) + 2 * (name == newer)))
        dry = subprocess.run(["make", "-n", "java"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return "maven.py package" in dry

    assert not packs("")
    assert all(map(packs, sources))
    (tmp_path / jars[0]).unlink()
    jars.remove(jars[0])
    assert packs("")


def test_make_setup_makes_a_venv_anew_whose_making_failed_and_clean_removes_it_if_maven_fails(tmp_path: Path) -> None:
    shutil.copy(REPO / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / "python"
    says = '#!/bin/sh\n[ "$1" = -c ] && exit\n[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"\n'

    def made(target: str, status: int) -> bool:
        python.write_text(f"{says}exit {status}\n")
        python.chmod(0o755)
        words = ["make", target, f"PYTHON={python}"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0

    assert not made("setup", 1)
    assert (tmp_path / ".venv/bin/python").exists()
    assert made("setup", 0)
    assert made("clean", 1)
    assert not (tmp_path / ".venv").exists()


def test_make_setup_refuses_a_checkout_below_a_path_with_a_blank(tmp_path: Path) -> None:
    checkout = tmp_path / "a b"
    checkout.mkdir()
    shutil.copy(REPO / "Makefile", checkout)
    (checkout / "pyproject.toml").touch()
    words = ["make", "setup", "PYTHON=false"]
    done = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == f"move the checkout: Hadoop takes no path with a blank: {checkout}\n"
