"""Cells of tables: names chosen by users cannot control the terminal, and times say their day."""

import time

from pycontrol.cli.tables import clock, moment, show


def test_control_characters_are_escapes() -> None:
    assert show("train\x1b[2J\x07") == "train\\x1b[2J\\x07"
    assert show(["a\r", "é"]) == "a\\r, é"
    assert show({"n\x9b1": 2}) != "n\x9b1:2"


def test_a_time_of_another_day_has_its_date() -> None:
    now_s = time.time()
    assert clock(now_s) in (time.strftime("%H:%M:%S", time.localtime(now_s)), moment(now_s))  # midnight may pass
    for at_s in (now_s - 86400, now_s + 20 * 86400, now_s - 365 * 86400):
        assert clock(at_s) == moment(at_s)
    assert clock(None) == "-"
