"""Submitting from Python, on a real cluster: the example notebook, and a script that knows nothing of Isonomy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import isonomy
from tests.cluster.rig import BIN, REPO, Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

OWN = """
import json, os, signal, sys, time
os.makedirs("ckpt", exist_ok=True)
step = json.load(open("ckpt/state.json"))["step"] if os.path.exists("ckpt/state.json") else 0
print("began at", step, flush=True)
def save():
    json.dump({"step": step}, open("ckpt/part", "w")); os.replace("ckpt/part", "ckpt/state.json")
signal.signal(signal.SIGTERM, lambda *_: (save(), sys.exit(0)))
while step < 60:
    time.sleep(0.5); step += 1
    print(f"Step [{step}/60], Loss: {1 / step:.4f}, f1: {step / 60:.3f}", flush=True)
save()
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("submit") / "dc", "isonomy")
    yield made
    made.down()


@pytest.fixture
def here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rig.env.items():
        monkeypatch.setenv(name, value)


def test_the_example_notebook(rig: Rig) -> None:
    env = {**rig.env, "PYTHONPATH": f"{REPO}:{REPO / 'submarine_patch/api'}", "COLUMNS": "200"}
    words = [sys.executable, "-m", "submarine_patch.examples.sweep"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr + rig.tail()
    assert "SUCCEEDED" in done.stdout, done.stdout + done.stderr
    assert "/models/sweep/ckpt-40-" in done.stdout
    assert "job003" in done.stdout


@pytest.mark.usefixtures("here")
def test_a_script_with_a_folder_of_its_own_continues_after_its_machine_is_drained(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN)
    app = isonomy.submit("python own.py", name="own", queue="research", framework="command", memory="512M", gpus=1,
                         files=[script], keep_folder="ckpt", metric="f1", mode="max")  # fmt: skip
    rig.training("own", 5)
    host = app.explain()["leases"][0]["gpu"].rpartition(":")[0]
    subprocess.run([BIN / "isonomy", "drain", host], env=rig.env, check=True, timeout=60)
    ended = app.wait(timeout_s=300)
    assert ended.succeeded, ended.message + rig.tail()
    (job,) = ended.jobs
    assert job["launches"] == 2
    assert job["metric"] > 0.5
    assert not job["note"]
    said = [p.read_text() for p in Path(rig.folder).glob("data/*/log/*/*/stdout") if "began at" in p.read_text()]
    begun = sorted(int(text.split("began at", 1)[1].split()[0]) for text in said)
    assert begun[0] == 0
    assert begun[1] >= 5, "what it had done was kept"
    subprocess.run([BIN / "isonomy", "undrain", host], env=rig.env, check=True, timeout=60)
