"""Of a word that is not known, the nearest that is."""

from __future__ import annotations

from pycontrol.words import suggest


def test_the_nearest_word_is_asked_for() -> None:
    assert suggest("themsi", ["drf", "themis"]) == "did you mean themis?"
    assert suggest("prot", ["port"], prefix="bridge.") == "did you mean bridge.port?"
    assert suggest("fig1", ["fig2", "fig3", "table"], most=2) == "did you mean fig3 or fig2?"
    assert suggest(3, [30, "x"]) == "did you mean 30?"


def test_where_nothing_is_near_what_is_known_is_named() -> None:
    assert suggest("lottery", ["drf", "srtf"]) == "known are drf, srtf"
    assert suggest("lottery", []) == "known are none"
    assert suggest("lottery", ["drf"], otherwise="see --help") == "see --help"
