"""Each story goes as its file says. `pytest tests/arbiter/stories --rewrite` writes the files anew; read them."""

from pathlib import Path

import pytest

from tests.arbiter.stories.player import play

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("file", STORIES, ids=lambda f: f.stem)
def test_a_story_goes_as_it_is_told(file: Path, request: pytest.FixtureRequest) -> None:
    kept = file.read_text()
    found = play(kept)
    if request.config.getoption("--rewrite"):
        file.write_text(found)
    else:
        assert found == kept
