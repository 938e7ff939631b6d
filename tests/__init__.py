import pytest

pytest.register_assert_rewrite("pycontrol.lab.conformance", "submarine_patch.lab.conformance")
