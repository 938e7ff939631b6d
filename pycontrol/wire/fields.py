"""Values and protobuf messages that have the same names for the same things."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def filled(kind: type[M], *sources: object, **given: Any) -> M:
    """A message with these fields; each of the others is the first source's that has an attribute of its name."""
    for name in kind.DESCRIPTOR.fields_by_name.keys() - given.keys():
        source = next((x for x in sources if hasattr(x, name)), None)
        if source is not None:
            given[name] = getattr(source, name)
    return kind(**given)


def value_of(kind: Callable[..., T], source: Message, **given: Any) -> T:
    """A dataclass with these fields; those that the message has too are the message's, which must be no lists."""
    values = {name: getattr(source, name) for name in _both(kind, source.DESCRIPTOR)}
    return kind(**(values | given))


@functools.cache
def _both(kind: Any, descriptor: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind) if f.name in descriptor.fields_by_name)
