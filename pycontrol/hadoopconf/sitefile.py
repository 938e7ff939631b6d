"""Reads Hadoop's *-site.xml files, and edits single properties of them."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from pycontrol.configerror import ConfigError

if TYPE_CHECKING:
    from pycontrol.config import Config


def read_site(file: Path) -> dict[str, str]:
    """The properties of a Hadoop XML file; the last of a name counts, as in Hadoop. Raises ConfigError."""
    try:
        return parse_site(file.read_bytes(), file.name)
    except OSError as error:
        raise ConfigError([f"{file.name}: cannot be read: {error.strerror}"]) from error


def parse_site(data: bytes, name: str) -> dict[str, str]:
    """The properties in a file's bytes; raises ConfigError, which contains `name`."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise ConfigError([f"{name}: is not XML: {error}"]) from error
    if root.tag != "configuration":
        raise ConfigError([f"{name}: must begin with <configuration> (got <{root.tag}>)"])
    properties = {}
    for node in root.iter("property"):
        key = (node.findtext("name") or "").strip()
        if not key:
            raise ConfigError([f"{name}: a <property> has no <name>; add it or remove the property"])
        properties[key] = (node.findtext("value") or "").strip()
    return properties


def names(text: str) -> list[str]:
    """The names of a list with commas."""
    return [n.strip() for n in text.split(",") if n.strip()]


def included(file: Path) -> list[str]:
    """The files that a Hadoop XML file includes, which `read_site` does not read; raises ConfigError."""
    try:
        root = ElementTree.fromstring(file.read_bytes())
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError([f"{file.name}: cannot be read: {error}"]) from error
    return [node.get("href", "?") for node in root.iter() if node.tag.rpartition("}")[2] == "include"]


def hadoop_conf_dir() -> Path | None:
    """The directory in HADOOP_CONF_DIR; None if it is not set."""
    value = os.environ.get("HADOOP_CONF_DIR")
    return Path(value) if value else None


def webhdfs_url(conf_dir: Path | None = None) -> str:
    """WebHDFS of the default file system, of several NameNodes all, with a semicolon; raises ConfigError."""
    conf_dir = conf_dir or hadoop_conf_dir()
    if conf_dir is None:
        raise ConfigError(["HADOOP_CONF_DIR: is not set; set it to the directory of core-site.xml and hdfs-site.xml"])
    hdfs = conf_dir / "hdfs-site.xml"
    site = read_site(conf_dir / "core-site.xml") | (read_site(hdfs) if hdfs.is_file() else {})
    if not urlsplit(site.get("fs.defaultFS", "")).hostname:
        raise ConfigError(["core-site.xml: fs.defaultFS: names no HDFS"])
    return webhdfs_of(site)


def webhdfs_of(site: Mapping[str, str]) -> str:
    """The NameNodes' web addresses by the properties of core-site.xml and hdfs-site.xml, with a semicolon."""
    name = urlsplit(site.get("fs.defaultFS", "")).hostname or "localhost"
    scheme, port = ("https", 9871) if site.get("dfs.http.policy") == "HTTPS_ONLY" else ("http", 9870)
    ids = [f".{name}.{i}" for i in names(site.get(f"dfs.ha.namenodes.{name}", ""))] or [""]
    found = [site.get(f"dfs.namenode.{scheme}-address{i}", f"{name}:{port}") for i in ids]
    return ";".join(f"{scheme}://{a.replace('0.0.0.0', name)}" for a in found)


def rm_web_url(config: Config | None = None, conf_dir: Path | None = None) -> str:
    """The ResourceManager's web URL (of a pair both, with a comma), from rm_web or yarn-site.xml."""
    if config and config.rm_web:
        return config.rm_web.rstrip("/")
    conf_dir = conf_dir or hadoop_conf_dir()
    if conf_dir is None:
        raise ConfigError(["HADOOP_CONF_DIR: is not set; set it to the directory of yarn-site.xml"])
    site = read_site(conf_dir / "yarn-site.xml")
    https = site.get("yarn.http.policy") == "HTTPS_ONLY"
    kind, port = ("webapp.https.address", 8090) if https else ("webapp.address", 8088)
    pair = site.get("yarn.resourcemanager.ha.enabled") == "true"
    ids = [f".{i}" for i in names(site.get("yarn.resourcemanager.ha.rm-ids", ""))] if pair else [""]
    urls = []
    for rm in ids:
        address = site.get(f"yarn.resourcemanager.{kind}{rm}", "")
        host = site.get(f"yarn.resourcemanager.hostname{rm}", "")
        for key in (f"yarn.resourcemanager.hostname{rm}", "yarn.resourcemanager.hostname"):
            address = address.replace(f"${{{key}}}", host)
        address = address or (f"{host}:{port}" if host else "")
        if not address:
            raise ConfigError([f"yarn-site.xml: yarn.resourcemanager.{kind}{rm}: is missing; add it"])
        urls.append(f"{'https' if https else 'http'}://{address}")
    return ",".join(urls)


# ---- edits of single properties, which preserve all else, comments and indentation too

EMPTY = '<?xml version="1.0" encoding="UTF-8"?>\n<configuration>\n</configuration>\n'
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PROPERTY = re.compile(r"[ \t]*<property\b.*?</property>[ \t]*\n?", re.DOTALL)
_NAME = re.compile(r"<name>\s*(.*?)\s*</name>", re.DOTALL)
_VALUE = re.compile(r"<value\s*/>|<value>.*?</value>", re.DOTALL)
_END = re.compile(r"</configuration\s*>")


def edited(file: str, text: str, wanted: Mapping[str, str | None]) -> str:
    """The file's text with these values; None removes a property. Raises ConfigError if that is not safe."""
    before = parse_site(text.encode(), file)
    for key, value in wanted.items():
        if value is not None:
            text = _set(file, text, key, value)
            continue
        for place in reversed(_places(text, key)):
            text = text[: place.start()] + text[place.end() :]
    expected = {k: v for k, v in before.items() if k not in wanted}
    expected |= {k: v for k, v in wanted.items() if v is not None}
    if parse_site(text.encode(), file) != expected:
        raise ConfigError([f"{file}: is written in a way that cannot be changed by program; change it by hand"])
    return text


def _places(text: str, key: str) -> list[re.Match[str]]:
    """The properties with this name outside comments; the last one counts, as in Hadoop."""
    comments = [c.span() for c in _COMMENT.finditer(text)]
    blanked = list(text)
    for start, end in comments:
        blanked[start:end] = " " * (end - start)
    return [m for m in _PROPERTY.finditer("".join(blanked)) if (n := _NAME.search(m[0])) and n[1] == escape(key)]


def _set(file: str, text: str, key: str, value: str) -> str:
    found = _places(text, key)
    if found:
        at = found[-1].start()
        spot = _VALUE.search(text, at, found[-1].end())
        if spot is None:
            raise ConfigError([f"{file}: {key}: has no <value>; change it by hand"])
        return f"{text[: spot.start()]}<value>{escape(value)}</value>{text[spot.end() :]}"
    ends = list(_END.finditer(text))
    if not ends:
        raise ConfigError([f"{file}: has no </configuration>; change it by hand"])
    line = f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
    return text[: ends[-1].start()] + line + text[ends[-1].start() :]
