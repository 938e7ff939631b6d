"""The worker: a supervisor around the user's program, and a helper library for that program.

Exit codes of a worker's container, besides those of the user's program:
75 stopped on request, resumable; 76 no Start arrived in time; 77 the Arbiter refused the worker's token or
messages; 78 the container's environment is wrong; 128 + n ended by signal n.
"""

import contextlib
import sys

EXIT_STOPPED = 75
EXIT_NO_START = 76
EXIT_REFUSED = 77
EXIT_SETTINGS = 78


def say(text: str) -> None:
    """A line of the supervisor in the container's log; a full disk must not end the training."""
    with contextlib.suppress(OSError):
        print(f"isonomy worker: {text}", file=sys.stderr, flush=True)
