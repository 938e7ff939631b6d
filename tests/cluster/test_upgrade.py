"""From an earlier version to this one while jobs run: control plane first and then jars, and the reverse.

ISONOMY_OLDER names a checkout of the earlier version in which `make setup java` was run: `make upgrade-test OLDER=DIR`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.rig import BIN, REPO, Rig, slowness

OLDER = Path(os.environ.get("ISONOMY_OLDER") or "/none")
MISSING = not (OLDER / "dev-cluster" / "up").exists()
pytestmark = [
    pytest.mark.versions,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(MISSING, reason="ISONOMY_OLDER names no checkout"),
]
LONG_S = 100.0
"""The length of the job that runs during the whole upgrade, on an idle machine."""


class Upgraded(Rig):
    """A cluster of the earlier version, until it is upgraded."""

    repo, bin = OLDER, OLDER / ".venv" / "bin"

    def new_control_plane(self) -> None:
        """Replaces the earlier control plane on its journal; clients are replaced too."""
        self.stop()
        self.bin = BIN
        self.serve()

    def new_jar(self, role: str) -> None:
        """Restarts a daemon with this version's jar."""
        self.dev("kill", role)
        self.repo = REPO
        self.dev("start", role)
        self.wait(lambda: self.get("status").get("ready"), 90, "the plugin is back")

    def goes_on(self, name: str) -> None:
        """Checks that the job still runs in its container."""
        self.wait(lambda: self.jobs(name), 60, f"{name}'s Agent is there again")
        self.training(name, self.jobs(name)[0]["step"] + 2)
        assert [j["restarts"] for j in self.jobs(name)] == [0]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Upgraded]:
    patient = ("--set", "yarn.am_expiry_ms=60000", "--set", "yarn.node_expiry_ms=60000")
    made = Upgraded(tmp_path / "dc", "themis", *patient)
    yield made
    made.down()


def test_the_control_plane_first(rig: Upgraded) -> None:
    rig.submit("before", LONG_S * slowness())
    rig.training("before", 3)
    rig.new_control_plane()
    rig.goes_on("before")
    rig.submit("between", 5)
    rig.succeeds("between")
    rig.new_jar("resourcemanager")
    rig.new_jar("nodemanager-0")
    rig.goes_on("before")
    rig.submit("after", 5)
    rig.succeeds("after")
    rig.succeeds("before")
    rig.audit()


def test_the_jars_first(rig: Upgraded) -> None:
    rig.submit("before", LONG_S * slowness())
    rig.training("before", 3)
    for role in sorted(r for r in rig.cluster["roles"] if r.startswith("nodemanager")):
        rig.new_jar(role)
    rig.new_jar("resourcemanager")  # the last, for it places nothing where no executor of this version is
    rig.goes_on("before")
    rig.submit("between", 5)
    rig.succeeds("between")
    rig.new_control_plane()
    rig.goes_on("before")
    rig.submit("after", 5)
    rig.succeeds("after")
    rig.succeeds("before")
    rig.audit()
