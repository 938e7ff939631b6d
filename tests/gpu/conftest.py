"""The lane of real GPUs (`make gpu-test`): each test asks the product's code with this machine's driver and GPUs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import cuda

Seen = Callable[[str], None]


def smi(*query: str) -> list[str]:
    """The lines that nvidia-smi prints; none where it sees no GPU."""
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    skipped = pytest.mark.skip(reason="nvidia-smi sees no GPU on this machine")
    for item in (item for item in items if here in item.path.parents):
        item.add_marker(pytest.mark.gpu)
        if not smi("-L"):
            item.add_marker(skipped)


@pytest.fixture(scope="session")
def gpus() -> int:
    """How many GPUs libcuda counts on this machine, in a process that hides none."""
    return cuda.asked(sys.executable)["all"]


@pytest.fixture
def seen(record_property: Callable[[str, object], None]) -> Seen:
    """Keeps a line for the end of the output."""
    return lambda line: record_property("seen", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for r in terminalreporter.getreports("passed") if "tests/gpu/" in r.nodeid]
    if reports:
        terminalreporter.section("seen on the GPU")
        machine = smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        terminalreporter.write_line("\n".join(machine))
    for report in reports:
        for _, line in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.partition('::')[2]}: {line}")
