"""Mistakes of the user: one clear line, exit status 2."""


class UsageError(Exception):
    """A mistake in an option, a file or the set-up, told in one line. Nothing was submitted."""


class ClusterUnreachable(Exception):
    """The cluster does not answer; of a submission nothing has happened yet."""
