"""The lane of real GPUs (`make gpu-test`): each test asks the product's code with this machine's driver and GPUs."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
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
    lines = [f"{r.nodeid.partition('::')[2]}: {line}" for r in reports for _, line in r.user_properties]
    if lines:
        terminalreporter.section(f"seen on {time.strftime('%Y-%m-%d', time.gmtime())}")
        machine = smi("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        kernel = ".".join(platform.release().split(".")[:2])
        system = f"{platform.system()} {kernel}, Python {platform.python_version()}, PyTorch {_torch()}"
        terminalreporter.write_line("\n".join([*machine, system, *lines]))


def _torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"
