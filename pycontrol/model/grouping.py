"""Pairs as tables: the values of each key as a list, or their sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", int, float)


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
