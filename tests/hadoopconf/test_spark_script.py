"""The script that tells Spark a container's GPUs, beside an nvidia-smi that lists all of the machine's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pycontrol.hadoopconf.render import confs_dir

SCRIPT = confs_dir() / "nodemanager" / "isonomy-spark-gpus"


def run(tmp_path: Path, visible: str | None, status: int = 0) -> subprocess.CompletedProcess[str]:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\nprintf '0\\n1\\n2\\n3\\n'\nexit {status}\n")
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    return subprocess.run([SCRIPT], env=env, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize(
    ("visible", "addresses"),
    [
        ("3", ["0"]),  # one of four: RAPIDS ends if it is told of more
        ("2,3", ["0", "1"]),  # CUDA numbers them anew
        ("GPU-8a1b,GPU-77c2", ["0", "1"]),
        ("0,-1,2", ["0"]),  # what follows an unknown one is hidden
        ("", []),
        (None, ["0", "1", "2", "3"]),  # YARN's plugin: nvidia-smi sees only the container's
    ],
)
def test_spark_is_told_of_the_containers_gpus_alone(tmp_path: Path, visible: str | None, addresses: list[str]) -> None:
    done = run(tmp_path, visible)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"name": "gpu", "addresses": addresses})


def test_without_an_answer_spark_gets_none(tmp_path: Path) -> None:
    done = run(tmp_path, None, status=9)
    assert (done.returncode, done.stdout) == (1, "")
