"""The Hadoop distribution that a configuration is for: its version and its jars."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import HADOOP_VERSIONS, OUR_EXECUTORS, OUR_SCHEDULER, SCHEDULER, YARN

Sites = Mapping[str, Mapping[str, str]]
_COMMON = re.compile(r"hadoop-common-(\d+\.\d+)\.\d+.*\.jar")
_JARS = ("isonomy-yarn-rm.jar", "isonomy-yarn-nm.jar")
_COMMONS = ("share/hadoop/common", ".", "../hadoop")
"""Where hadoop-common's jar lies below HADOOP_HOME: of Apache's archive; of EMR, Bigtop and parcels; or beside it."""
_LIBRARIES = ("share/hadoop/yarn/lib", "../hadoop-yarn/lib")
"""Where the jars of Isonomy go; both are on the class path of both daemons."""


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
        jars = (jar for place in _COMMONS for jar in Path(home, place).glob("hadoop-common-*.jar"))
        return cls(next((m[1] for jar in jars if (m := _COMMON.fullmatch(jar.name))), ""), Path(home))

    @property
    def library(self) -> Path | None:
        """The folder for Isonomy's jars on this machine; None: unknown."""
        found = ((self.home / place).resolve() for place in _LIBRARIES) if self.home else ()
        return next((place for place in found if place.is_dir()), None)

    def has(self, jar: str) -> bool:
        """Whether the jar is in that folder or above it."""
        return self.library is not None and any((place / jar).exists() for place in (self.library, self.library.parent))

    def findings(self, sites: Sites) -> Iterator[Finding]:
        """Settings that do not fit the distribution."""
        yarn = sites.get(YARN, {})
        if self.version and self.version not in HADOOP_VERSIONS:
            yield error(YARN, "", f"is of Hadoop {self.version}; Isonomy runs on {', '.join(HADOOP_VERSIONS)}")
        if self.version == "3.3":
            for key, value in sites.get(SCHEDULER, {}).items():
                if key.endswith(".user-limit-factor") and value == "-1":
                    yield error(SCHEDULER, key, "is -1: Hadoop 3.3 refuses every application then; set it to 100")
        ours = yarn.get("yarn.resourcemanager.scheduler.class") == OUR_SCHEDULER
        ours = ours or yarn.get("yarn.nodemanager.container-executor.class") in OUR_EXECUTORS
        if ours and self.library and not any(map(self.has, _JARS)):
            said = f"names classes of Isonomy, and none of its jars is in {self.library}: a daemon whose class path"
            yield note(YARN, "", f"{said} has them nowhere does not start")
