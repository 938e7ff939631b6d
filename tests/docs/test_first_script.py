"""The scripts of docs/submit.md's first screen show progress, and with the change resume where they were stopped."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from submarine_patch.worker.logparse import LogParser, Progress

REPO = Path(__file__).parents[2]
SCRIPTS = {
    text.split(":", 1)[0].split(",", 1)[0]: text
    for text in re.findall(r"```diff\n # (.*?)```", (REPO / "docs/submit.md").read_text(encoding="utf-8"), re.DOTALL)
}
"""By framework: the change, from its name on."""
TORCH = REPO / "build/torch/site"
"""Where `make torch-test` installs PyTorch."""
END = {"Keras": 5 * 57, "PyTorch": 400, "scikit-learn": 40}
EXIT = {"scikit-learn": -signal.SIGTERM}


def lines(framework: str, sign: str) -> str:
    """The script before (-) or after (+) the change."""
    return "\n".join(x[1:] for x in SCRIPTS[framework].splitlines()[1:] if x[:1] in (" ", sign, ""))


def run(script: Path, env: Mapping[str, str], stop_at: int = 0) -> tuple[int, list[Progress]]:
    """The exit code and the progress of a script, which is told to stop once it has done so many steps."""
    parser, found = LogParser(), list[Progress]()
    words = [sys.executable, script.name]
    path = f"{REPO}:{REPO / 'submarine_patch/api'}:{os.environ.get('PYTHONPATH', '')}"
    with subprocess.Popen(
        words,
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **env},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            for part in line.split("\r"):
                seen = parser.feed(part.rstrip("\n"), float(len(found)))
                found += [seen] if isinstance(seen, Progress) else []
            if stop_at and found and found[-1].step >= stop_at:
                process.send_signal(signal.SIGTERM)
                stop_at = 0
    return process.returncode, found


@pytest.mark.parametrize("framework", ["scikit-learn", "Keras", "PyTorch"])
def test_a_script_shows_progress_unchanged_and_resumes_with_a_few_lines_more(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "PyTorch" and importlib.util.find_spec("torch") is None:
        if not TORCH.is_dir():
            pytest.skip("PyTorch is not installed here: make torch-test does")
        monkeypatch.setenv("PYTHONPATH", str(TORCH))
    script, end = tmp_path / "train.py", END[framework]
    script.write_text(lines(framework, "-"), encoding="utf-8")
    _, shown = run(script, {}, stop_at=end // 4)
    assert shown[-1].until_step == end, "its lines say how far it trains"
    script.write_text(lines(framework, "+"), encoding="utf-8")
    env = {"ISONOMY_CHECKPOINT_DIR": str(tmp_path / "store")}
    slow = {"ISONOMY_PACING": '{"serial_iter_s": 0.04, "gpus": 1}'}  # on a busy machine, too, it ends after it is told
    code, first = run(script, {**env, **slow}, stop_at=end // 4)
    assert code == EXIT.get(framework, 75)
    code, rest = run(script, env)
    assert code == 0
    least = end // 4 if framework == "scikit-learn" else first[-1].step + 1  # a session logs each 100th step
    assert rest[0].step >= least, "it did not begin anew"
    assert rest[-1].step == end
    if framework != "PyTorch":
        assert (rest[-1].accuracy or 0.0) > 0.9
