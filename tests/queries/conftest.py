"""Scenes move on faster than pictures age: here each look is a new one."""

from tests.web.conftest import always_fresh

__all__ = ["always_fresh"]
