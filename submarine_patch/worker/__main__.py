"""`python -m submarine_patch.worker -- COMMAND`: see supervisor.py."""

import os
import sys

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from submarine_patch.worker.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
