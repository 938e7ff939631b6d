"""A lost journal: round numbers start again while tags of running containers name the old ones."""

from pycontrol.model.cluster import Container
from pycontrol.model.topology import Gpu
from tests.arbiter.mini import Mini


def test_no_new_grant_has_the_id_of_an_adopted_containers_grant() -> None:
    first = Mini(nodes=(("n1", 8),))
    app = first.app("a", gang=2)
    first.run(2)
    (old,) = {x.grant_id for x in first.a.durable.leases.of("a")}
    m = Mini(nodes=(("n1", 8),))  # with an empty journal
    container = Container("c1", "a", "n1:1", (Gpu("n1", 0), Gpu("n1", 1)), old, 1, app.attempt_id)
    m.send(m.snapshot([app], [container]))
    m.app("b")
    m.app("c")
    m.run(5)
    m.app("d")
    m.run(30)
    grants = [{x.grant_id for x in m.a.durable.leases.of(name)} for name in "abcd"]
    assert grants[0] == {old}
    assert len(set.union(*grants)) == 4, grants
    rounds = [r.round_id for r in m.a.receipts]
    assert len(set(rounds)) == len(rounds)
