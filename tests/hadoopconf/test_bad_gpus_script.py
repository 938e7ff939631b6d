"""The NodeManager's script that names bad GPUs, against a fake nvidia-smi and a fake kernel log."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pycontrol.bridge.translate import node_of
from pycontrol.hadoopconf.render import confs_dir
from pycontrol.wire.v1 import bridge_pb2 as pb

SCRIPT = confs_dir() / "nodemanager" / "isonomy-bad-gpus"
FINE = "0, 00000000:3B:00.0, 0\n1, 00000000:5E:00.0, 0\n2, 00000000:AF:00.0, 0\n3, 00000000:D8:00.0, 0\n"
LOST = "Unable to determine the device handle for GPU0000:5E:00.0: GPU is lost. Reboot the system to recover this GPU\n"


def script(tmp_path: Path, listed: str, log: str = "", status: int = 0, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with an nvidia-smi that prints `listed` and a kernel log."""
    for name, text, code in (("nvidia-smi", listed, status), ("dmesg", log, 0)):
        (tmp_path / f"{name}.txt").write_text(text)
        fake = tmp_path / name
        fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/{name}.args\ncat {tmp_path}/{name}.txt\nexit {code}\n')
        fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    return subprocess.run([SCRIPT, *args], env=env, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize(
    ("listed", "log", "expected", "bad"),
    [
        (FINE, "", "4", "none"),
        (FINE, "", "0", "none"),
        (FINE.replace("5E:00.0, 0", "5E:00.0, 2"), "", "4", "1"),
        (FINE.replace("5E:00.0, 0", "5E:00.0, 2").replace("D8:00.0, 0", "D8:00.0, [Unknown Error]"), "", "4", "1_3"),
        (FINE.replace(", 0\n", ", [N/A]\n"), "", "4", "none"),
        (FINE.replace(", 0\n", ", [Not Supported]\n"), "", "4", "none"),
        (FINE, "[ 12.3] NVRM: Xid (PCI:0000:af:00): 79, pid='<unknown>', GPU has fallen off the bus.\n", "4", "2"),
        (FINE, "[ 12.3] NVRM: Xid (0000:3b:00): 48, An uncorrectable double bit error\n", "4", "0"),
        (FINE, "NVRM: Xid (PCI:0000:d8:00 GPU-I:05): 95, pid=7, name=python, Uncontained\n", "4", "3"),
        (FINE, "NVRM: Xid (PCI:0000:af:00): 31, pid=7, name=python, MMU Fault: the program's own error\n", "4", "none"),
        (FINE, "NVRM: Xid (PCI:0000:aa:00): 79, pid=7, a GPU that is not listed\n", "0", "all"),
        (FINE.replace("1, 00000000:5E:00.0, 0\n", LOST), "", "4", "all"),
    ],
    ids=[
        "all well", "number not checked", "ecc", "ecc and unreadable", "no ecc", "no ecc, old driver", "off the bus",
        "old xid", "xid with mig", "xid of a program", "xid of a missing gpu", "one is missing",
    ],
)  # fmt: skip
def test_bad_gpus_are_named_as_the_plugin_reads_them(
    tmp_path: Path, listed: str, log: str, expected: str, bad: str
) -> None:
    done = script(tmp_path, listed, log, 15 if "lost" in listed else 0, expected)
    assert (done.returncode, done.stdout) == (0, f"NODE_ATTRIBUTE:bad-gpus,STRING,{bad}\n"), done.stderr
    assert "ecc.errors.uncorrected.volatile.total" in (tmp_path / "nvidia-smi.args").read_text()
    node = node_of(pb.Node(node_id="n1:1", gpus=4, attributes={"nm.yarn.io/bad-gpus": bad}))
    named = {"none": set(), "all": {0, 1, 2, 3}}.get(bad)
    assert node.bad_gpus == (named if named is not None else {int(i) for i in bad.split("_")})
    assert not node.note


@pytest.mark.parametrize("listed", ["", "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n"])
def test_without_an_answer_the_script_prints_nothing(tmp_path: Path, listed: str) -> None:
    done = script(tmp_path, listed, "", 9, "4")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nvidia-smi lists no GPU" in done.stderr


def test_which_xids_count_is_a_setting(tmp_path: Path) -> None:
    log = "NVRM: Xid (PCI:0000:af:00): 31, pid=7\n"
    script(tmp_path, FINE, log)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ISONOMY_XIDS": "31"}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "NODE_ATTRIBUTE:bad-gpus,STRING,2\n"
