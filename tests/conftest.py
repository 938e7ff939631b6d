"""All tests: their time zone is UTC; what commands print as JSON is what docs/cli.json says."""

import os
import time

import pytest

from tests import contract

contract.install()
os.environ["TZ"] = "UTC"  # commands print local time
time.tzset()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the flag that rewrites the stories."""
    parser.addoption("--rewrite", action="store_true", help="write tests/arbiter/stories/*.txt as they go now")
