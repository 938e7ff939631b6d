"""For an unknown word, the nearest known one."""

from __future__ import annotations

from pycontrol.words import suggest


def test_the_nearest_word_is_suggested() -> None:
    assert suggest("themsi", ["drf", "themis"]) == "did you mean themis?"
    assert suggest("prot", ["port"], prefix="bridge.") == "did you mean bridge.port?"
    assert suggest("fig1", ["fig2", "fig3", "table"], most=2) == "did you mean fig3 or fig2?"
    assert suggest(3, [30, "x"]) == "did you mean 30?"


def test_if_no_word_is_near_the_known_ones_are_listed() -> None:
    assert suggest("lottery", ["drf", "srtf"]) == "known are drf, srtf"
    assert suggest("lottery", []) == "known are none"
    assert suggest("lottery", ["drf"], otherwise="see --help") == "see --help"
