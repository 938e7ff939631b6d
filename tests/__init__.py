import pytest

pytest.register_assert_rewrite("pycontrol.policies.conformance", "submarine_patch.agent.schedulers.conformance")
