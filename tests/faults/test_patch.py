"""A mutant's piece of code is found by its tokens, not by its layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.patch import replaced

SOURCE = """class A:
    def f(self):
        if (x is None
            or y == "a",  # why
        ):
            self.g(1,
                   2)
            return 0
"""


def put(tmp_path: Path, *sources: str) -> Path:
    for k, source in enumerate(sources):
        (tmp_path / f"m{k}.py").write_text(source)
    return tmp_path


def test_layout_quotes_comments_and_last_commas_do_not_matter(tmp_path: Path) -> None:
    path, text = replaced("self.g(1, 2)\nreturn 0", "pass\nreturn 1", put(tmp_path, SOURCE))
    assert path.name == "m0.py"
    assert text.endswith("        ):\n            pass\n            return 1\n")
    _, text = replaced("if (x is None or y == 'a'):", "if (True,):", tmp_path)
    assert "if (True,):\n            self.g(" in text


def test_a_missing_or_repeated_piece_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is 0 times"):
        replaced("self.h()", "pass", put(tmp_path, SOURCE))
    with pytest.raises(ValueError, match="is 2 times"):
        replaced("return 0", "return 1", put(tmp_path, SOURCE, SOURCE))
