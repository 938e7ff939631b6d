import pytest

pytest.register_assert_rewrite("pycontrol.lab.conformance", "submarine_patch.agent.schedulers.conformance")
