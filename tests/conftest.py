"""All tests: what commands print as JSON is what docs/cli.json says."""

from tests import contract

contract.install()
