"""Edits single properties of Hadoop's XML files and preserves everything else, including comments and indentation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import escape

from pycontrol.config import ConfigError
from pycontrol.hadoopconf.sitefile import parse_site

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
        text = _removed(text, key) if value is None else _set(file, text, key, value)
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


def _removed(text: str, key: str) -> str:
    for place in reversed(_places(text, key)):
        text = text[: place.start()] + text[place.end() :]
    return text
