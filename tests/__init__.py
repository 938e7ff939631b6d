import os

import pytest

# Test servers and clusters are on loopback addresses, which no proxy reaches.
_OWN = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
os.environ["no_proxy"] = f"localhost,127.0.0.1,127.0.0.0/8,{_OWN}".rstrip(",")

pytest.register_assert_rewrite("pycontrol.lab.conformance", "submarine_patch.lab.conformance")
