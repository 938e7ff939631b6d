"""The gRPC service for Agents and workers. gRPC's own log is off, because failures are logged here."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is first imported
