"""`isonomy journal`: one line per error, and an exit status for scripts."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner, Result

from pycontrol.arbiter.ledger.facts import AppArrived, AppChanged, RoundHeld
from pycontrol.cli import main
from pycontrol.model.receipt import Receipt
from pycontrol.runtime.journal import SqliteJournal


def isonomy(*args: str) -> Result:
    return CliRunner().invoke(main, ["journal", *args])


def make(path: Path) -> str:
    journal = SqliteJournal(path)
    arrived = AppArrived("app1", "naïve", "root.a", "u", "job", 1.0, 2.0)
    held = RoundHeld("r1", 3.0, Receipt("r1", 3.0, ""))
    journal.append([arrived, held, AppChanged("app1", {"message": "m"})], 5.0)
    journal.close()
    return str(path)


def test_check_show_and_repair(tmp_path: Path) -> None:
    file = make(tmp_path / "journal.sqlite")
    result = isonomy("check", file)
    assert result.exit_code == 0
    assert result.stdout.endswith("clean\n")
    assert json.loads(isonomy("check", file, "-o", "json").stdout)["facts"] == 3
    shown = [json.loads(line) for line in isonomy("show", file, "-n", "2").stdout.splitlines()]
    assert [row["kind"] for row in shown] == ["RoundHeld", "AppChanged"]
    assert [json.loads(x)["seq"] for x in isonomy("show", file, "--since", "0", "-n", "1").stdout.splitlines()] == [1]
    assert json.loads(isonomy("show", file, "--kind", "AppArrived").stdout)["name"] == "naïve"
    assert isonomy("check", file, "--repair").stdout.startswith("nothing to mend\n")
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE facts SET data = 'x' WHERE seq = 3")
        db.commit()
    result = isonomy("check", file)
    assert result.exit_code == 1
    assert "problem: row 3 (AppChanged) is damaged" in result.stdout
    assert f"isonomy journal check --repair {file}" in result.stdout
    result = isonomy("check", file, "--repair")
    assert result.exit_code == 0
    assert "1 rows, are set aside" in result.stdout
    assert isonomy("check", file).exit_code == 0


def test_what_is_no_journal_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_text("hello\n" * 200)
    for words in (("check",), ("show",), ("check", "--repair")):
        for name in ("no.sqlite", "missing"):
            result = isonomy(*words, str(tmp_path / name))
            assert result.exit_code == 1
            assert result.stderr.startswith("error: ")
            assert result.stderr.count("\n") == 1
