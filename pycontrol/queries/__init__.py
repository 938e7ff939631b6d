"""Read-only views of the Arbiter's state for REST, the command line and metrics."""
