"""`python -m submarine_patch.worker -- COMMAND...`: a worker in its container."""

from __future__ import annotations

import sys

from submarine_patch.worker.credentials import CredentialsError
from submarine_patch.worker.supervisor import Supervisor


def main() -> int:
    """Runs the command after `--` under a supervisor."""
    args = sys.argv[1:]
    if not args or args[0] != "--" or len(args) < 2:
        print("usage: python -m submarine_patch.worker -- COMMAND...", file=sys.stderr)
        return 2
    try:
        return Supervisor(args[1:]).run()
    except KeyError as e:
        print(f"the environment variable {e} is missing: not started by an Isonomy Agent", file=sys.stderr)
    except CredentialsError as e:
        print(str(e), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
