"""What a user is told in one line."""


class DevClusterError(Exception):
    """Something that the user can put right; the text says how."""
