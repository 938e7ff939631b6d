"""The script of docs/submit.md's first screen: it runs, and resumes where it was killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from submarine_patch.worker.logparse import LogParser, Progress

PAGE = Path(__file__).parents[2] / "docs/submit.md"


def test_the_first_script_resumes_where_it_was_killed(tmp_path: Path) -> None:
    code = re.search(r"```python\n# train.py with scikit-learn\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (tmp_path / "train.py").write_text(code[1], encoding="utf-8")
    lines = []
    with subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as first:
        assert first.stdout is not None
        for line in first.stdout:
            lines.append(line)
            if line.startswith("Epoch 7/"):
                first.terminate()
    again = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    rest = again.stdout.splitlines()
    parser = LogParser()
    found = [parser.feed(line, float(k)) for k, line in enumerate(rest)]
    steps = [p.step for p in found if isinstance(p, Progress)]
    assert steps[0] in range(7, 40), "it did not begin anew"
    assert steps[-1] == 40
    assert parser.last is not None
    assert parser.last.accuracy is not None
    assert parser.last.accuracy > 0.9
