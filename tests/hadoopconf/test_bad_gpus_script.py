"""The NodeManager's script that names bad GPUs, against a fake nvidia-smi and a fake kernel log."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pycontrol.bridge.bridge_messages import node_of
from pycontrol.hadoopconf.render import confs_dir
from pycontrol.wire.v1 import bridge_pb2 as pb

SCRIPT = confs_dir() / "nodemanager" / "isonomy-bad-gpus"
FINE = "0, 00000000:3B:00.0, 0\n1, 00000000:5E:00.0, 0\n2, 00000000:AF:00.0, 0\n3, 00000000:D8:00.0, 0\n"
LOST = "Unable to determine the device handle for GPU0000:5E:00.0: GPU is lost. Reboot the system to recover this GPU\n"


def script(
    tmp_path: Path, listed: str, log: str = "", status: int = 0, *args: str, rows: str = "", reader: str = "dmesg"
) -> subprocess.CompletedProcess[str]:
    """Runs the script with an nvidia-smi that prints `listed`, or remapped `rows`, and a kernel log that `reader` may
    read."""
    (tmp_path / "rows").write_text(rows or 'Field "--query-remapped-rows" is not known to this driver\n')
    for name, text, code in (("nvidia-smi", listed, status), ("dmesg", log, 0), ("journalctl", log, 0)):
        (tmp_path / f"{name}.txt").write_text(text)
        fake = tmp_path / name
        lines = f'echo "$@" >> {tmp_path}/{name}.args\ncat {tmp_path}/{name}.txt\nexit {code}\n'
        if name == "nvidia-smi":
            lines = f'case "$1" in --query-remapped-rows*) cat {tmp_path}/rows; exit;; esac\n' + lines
        elif name != reader:
            lines = "echo Operation not permitted >&2; exit 1\n"
        fake.write_text(f"#!/bin/sh\n{lines}")
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
        "all well",
        "number not checked",
        "ecc",
        "ecc and unreadable",
        "no ecc",
        "no ecc, old driver",
        "off the bus",
        "old xid",
        "xid with mig",
        "xid of a program",
        "xid of a missing gpu",
        "one is missing",
    ],
)
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


ROWS = "00000000:3B:00.0, No, No\n00000000:5E:00.0, {}, {}\n00000000:AF:00.0, No, No\n00000000:D8:00.0, No, No\n"


@pytest.mark.parametrize(
    ("pending", "failure", "bad"),
    [("No", "No", "none"), ("Yes", "No", "1"), ("No", "Yes", "1"), ("0", "1", "1"), ("[N/A]", "[N/A]", "none")],
)
def test_a_gpu_that_must_or_cannot_remap_a_row_is_bad(tmp_path: Path, pending: str, failure: str, bad: str) -> None:
    done = script(tmp_path, FINE, "", 0, "4", rows=ROWS.format(pending, failure))
    assert done.stdout == f"NODE_ATTRIBUTE:bad-gpus,STRING,{bad}\n"


@pytest.mark.parametrize(
    ("reader", "lines"),
    [("journalctl", ["bad-gpus,STRING,2"]), ("nobody", ["bad-gpus,STRING,none", "gpu-xids,STRING,unseen"])],
)
def test_without_rights_to_dmesg_the_journal_is_read_or_it_is_said(
    tmp_path: Path, reader: str, lines: list[str]
) -> None:
    log = "Nov 24 03:00:00 n1 kernel: NVRM: Xid (PCI:0000:af:00): 79, pid=7, off the bus\n"
    done = script(tmp_path, FINE, log, 0, "4", reader=reader)
    assert done.stdout.splitlines() == [f"NODE_ATTRIBUTE:{line}" for line in lines]


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
