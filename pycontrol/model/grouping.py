"""Pairs as tables, and tables by key: the values of each key as a list, their sum, or by a second key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
L = TypeVar("L")
V = TypeVar("V")
N = TypeVar("N", int, float)
NOTHING: Mapping[Any, Any] = {}
"""The table of a key that has none."""


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Key -> its values, in order."""
    found: dict[K, list[V]] = {}
    for key, each in pairs:
        found.setdefault(key, []).append(each)
    return found


def summed(pairs: Iterable[tuple[K, N]]) -> dict[K, N]:
    """Key -> the sum of its values."""
    found: dict[K, Any] = {}
    for key, n in pairs:
        found[key] = found[key] + n if key in found else n
    return found


class Tables(Generic[K, L, V]):
    """Key -> a table, while it is not empty. A copy shares the tables until one of the two changes them."""

    def __init__(self) -> None:
        self.by_key: dict[K, dict[L, V]] = {}
        self._own: set[K] = set()
        """Keys of tables that no copy shares."""

    def copy(self) -> Tables[K, L, V]:
        """An independent copy."""
        other = Tables[K, L, V]()
        other.by_key = dict(self.by_key)
        self._own.clear()
        return other

    def at(self, key: K) -> Mapping[L, V]:
        """The table of a key."""
        return self.by_key.get(key, NOTHING)

    def put(self, key: K, item: L, value: V) -> None:
        """Adds or replaces an item."""
        self._changing(key)[item] = value

    def drop(self, key: K, item: L) -> None:
        """Removes an item, if it is there."""
        if item in self.at(key):
            table = self._changing(key)
            del table[item]
            if not table:
                del self.by_key[key]
                self._own.discard(key)

    def _changing(self, key: K) -> dict[L, V]:
        if key not in self._own:
            self._own.add(key)
            self.by_key[key] = dict(self.at(key))
        return self.by_key[key]
