"""The Agents' and workers' gRPC. What gRPC itself would print about a failure is said in our own words."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is first imported
