"""Cells of tables: names chosen by users cannot control the terminal."""

from pycontrol.cli.tables import show


def test_control_characters_are_escapes() -> None:
    assert show("train\x1b[2J\x07") == "train\\x1b[2J\\x07"
    assert show(["a\r", "é"]) == "a\\r, é"
    assert show({"n\x9b1": 2}) != "n\x9b1:2"
