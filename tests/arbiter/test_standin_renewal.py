"""An app without an Agent bids for the GPUs that it has, even when it asks for no more."""

import dataclasses

from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask
from tests.arbiter.mini import SETTINGS, Mini


def test_containers_one_by_one_are_renewed_in_an_auction_where_nobody_else_waits() -> None:
    m = Mini("themis", dataclasses.replace(SETTINGS, standin_revocable=True))
    app = m.foreign("f", gpus=1, count=2)
    m.run(4)
    for place in m.places():
        m.up(place)
    m.send(ev.AskChanged(Ask(app.attempt_id, "f", 0, 1, 0)))
    before = m.held("f")
    assert len(before) == 2
    m.run(2 * SETTINGS.lease_s, step=5)
    assert m.held("f") == before
    assert not m.of(ev.Preempt)
