"""New HDFS tokens of users, from a simulated NameNode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pycontrol.config import HdfsTokenSettings
from pycontrol.daemon.hdfs_tokens import REFUSED_S, HdfsTokens
from pycontrol.rpc.service import NoHdfsToken
from tests.httpd import Asked, Reply, serving

LIFE_S = 100.0


class NameNode:
    """Issues tokens that contain their owner and a serial number."""

    def __init__(self) -> None:
        self.now_s, self.given = 1000.0, 0
        self.asked: list[dict[str, str]] = []
        self.standby = self.odd = False
        self.server, self.url = ExitStack(), ""

    def answer(self, asked: Asked) -> Reply:
        method, query = asked.method, asked.params
        self.asked.append(query)
        if self.standby or query.get("doas") == "root":
            return Reply({"RemoteException": {"exception": "StandbyException", "message": "not\nallowed"}}, 403)
        if self.odd:
            return Reply({"Token": None})
        if (method, query["op"]) == ("GET", "GETDELEGATIONTOKEN"):
            self.given += 1
            return Reply({"Token": {"urlString": f"{query['doas']}-{self.given}"}})
        assert (method, query["op"]) == ("PUT", "RENEWDELEGATIONTOKEN")
        return Reply({"long": (self.now_s + LIFE_S) * 1000})


@pytest.fixture
def name_node() -> Iterator[NameNode]:
    made = NameNode()
    with made.server:
        made.url = made.server.enter_context(serving(made.answer))
        yield made


def tokens(name_node: NameNode, *before: str) -> HdfsTokens:
    at = HdfsTokenSettings(webhdfs=";".join((*before, name_node.url)))
    return HdfsTokens(at, lambda: name_node.now_s)


def test_an_app_has_its_users_token_until_half_of_its_life_has_ended(name_node: NameNode) -> None:
    found = tokens(name_node)
    assert found.of("a1", "ann") == ("ann-1", 1100.0)
    assert found.of("a2", "bob") == ("bob-2", 1100.0)
    name_node.now_s += 49.0
    assert found.of("a1", "ann") == ("ann-1", 1100.0)
    name_node.now_s += 2.0
    assert found.of("a1", "ann") == ("ann-3", 1151.0)
    assert [q["token"] for q in name_node.asked if q["op"] == "RENEWDELEGATIONTOKEN"] == ["ann-1", "bob-2", "ann-3"]


def test_of_two_name_nodes_the_active_one_is_asked(name_node: NameNode) -> None:
    other = NameNode()
    other.standby = True
    with serving(other.answer) as url:
        assert tokens(name_node, url).of("a1", "ann") == ("ann-1", 1100.0)
        assert other.asked


def test_a_refusal_is_one_line_without_a_token_and_is_told_again_for_a_while(name_node: NameNode) -> None:
    found = tokens(name_node)
    with pytest.raises(NoHdfsToken, match=r"GETDELEGATIONTOKEN: 403 StandbyException: not allowed$"):
        found.of("a1", "root")
    asked = len(name_node.asked)
    with pytest.raises(NoHdfsToken, match="403 StandbyException"):
        found.of("a2", "root")
    assert len(name_node.asked) == asked, "HDFS is not asked again at once"
    name_node.odd = True
    with pytest.raises(NoHdfsToken, match="no delegation token"):
        found.of("a1", "ann")
    name_node.odd = False
    name_node.now_s += REFUSED_S
    assert found.of("a1", "ann")[0] == "ann-1"
    name_node.server.close()
    name_node.now_s += 60.0
    with pytest.raises(NoHdfsToken) as raised:
        found.of("a1", "ann")
    assert "doas" not in str(raised.value)
