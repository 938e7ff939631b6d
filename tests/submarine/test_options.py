"""A group's options by the cases that the runtime in Java is held to, too."""

from pathlib import Path

import pytest

from submarine_patch.cli.checks import check_group
from submarine_patch.cli.errors import UsageError

LINES = (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").splitlines()
CASES = [line for line in LINES if line and not line.startswith("#")]


@pytest.mark.parametrize("case", CASES)
def test_options_are_taken_or_refused_by_the_name_of_their_key(case: str, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("parameters: {lr: {type: float, min: 0.1, max: 1}}\n", encoding="utf-8")
    pairs, _, wrong = (part.strip() for part in case.replace("@space", str(space)).partition("|"))
    conf = dict(pair.split("=", 1) for pair in pairs.split(" "))
    if not wrong:
        check_group(conf)
        return
    with pytest.raises(UsageError, match=rf"^isonomy\.{wrong}\b"):
        check_group(conf)
