"""The Hadoop distribution that a configuration is for: its version and its jars."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import (
    HADOOP_VERSIONS,
    OLD_WEB,
    OLD_WEB_KEY,
    OUR_EXECUTORS,
    OUR_SCHEDULER,
    OUR_WEB,
    SCHEDULER,
    WEB_KEY,
    YARN,
)

Sites = Mapping[str, Mapping[str, str]]
_COMMON = re.compile(r"hadoop-common-(\d+\.\d+)\.\d+.*\.jar")
_JARS = ("isonomy-yarn-rm.jar", "isonomy-yarn-nm.jar")
_PLACES = ("yarn", "yarn/lib", "common/lib")
"""Folders below share/hadoop that are on the class path of both daemons."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is known of a Hadoop distribution."""

    version: str = ""
    """Version such as 3.4; empty: unknown."""
    home: Path | None = None
    """Where it is installed on this machine; None: unknown."""

    @classmethod
    def here(cls) -> Distribution:
        """The distribution at HADOOP_HOME."""
        home = os.environ.get("HADOOP_HOME", "")
        if not home:
            return cls()
        jars = Path(home, "share", "hadoop", "common").glob("hadoop-common-*.jar")
        return cls(next((m[1] for jar in jars if (m := _COMMON.fullmatch(jar.name))), ""), Path(home))

    def findings(self, sites: Sites) -> Iterator[Finding]:
        """Settings that do not fit the distribution."""
        yarn = sites.get(YARN, {})
        if self.version and self.version not in HADOOP_VERSIONS:
            yield error(YARN, "", f"is of Hadoop {self.version}; Isonomy runs on {', '.join(HADOOP_VERSIONS)}")
        yield from self._rest(yarn)
        if self.version == "3.3":
            for key, value in sites.get(SCHEDULER, {}).items():
                if key.endswith(".user-limit-factor") and value == "-1":
                    yield error(SCHEDULER, key, "is -1: Hadoop 3.3 refuses every application then; set it to 100")
        classes = (
            yarn.get("yarn.resourcemanager.scheduler.class"),
            yarn.get("yarn.nodemanager.container-executor.class"),
        )
        ours = classes[0] == OUR_SCHEDULER or classes[1] in OUR_EXECUTORS
        share = self.home and self.home / "share" / "hadoop"
        if ours and share and share.is_dir() and not any((share / p / jar).exists() for p in _PLACES for jar in _JARS):
            yield note(
                YARN,
                "",
                f"names classes of Isonomy, and none of its jars is in {share}/yarn/lib: a daemon whose class path"
                " has them nowhere does not start",
            )

    def _rest(self, yarn: Mapping[str, str]) -> Iterator[Finding]:
        older = OLD_WEB in yarn.get(OLD_WEB_KEY, "").split(",")
        if self.version in ("3.3", "3.4") and yarn.get(WEB_KEY) == OUR_WEB:
            yield error(
                YARN,
                WEB_KEY,
                f"is for Hadoop 3.5 (this is {self.version}, whose ResourceManager may not start with it); remove it"
                + ("" if older else f", and set {OLD_WEB_KEY} to {OLD_WEB}"),
            )
        elif self.version == "3.5" and older and yarn.get(WEB_KEY) != OUR_WEB:
            yield error(
                YARN, OLD_WEB_KEY, f"is for Hadoop 3.3 and 3.4; set {WEB_KEY} to {OUR_WEB}, else there is no REST"
            )
