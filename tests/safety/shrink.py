"""Makes a case that fails smaller."""

from __future__ import annotations

import dataclasses

from tests.safety.cases import Ask, Case
from tests.safety.oracle import complaints


def shrunk(case: Case) -> Case:
    """A smaller case that still fails: asks and events are left out one by one."""
    while True:
        for smaller in _smaller(case):
            try:
                failing = bool(complaints(smaller))
            except Exception:
                failing = True
            if failing:
                case = smaller
                break
        else:
            return case


def _smaller(case: Case) -> list[Case]:
    tries = [dataclasses.replace(case, asks=tuple(a for a in case.asks if a is not ask)) for ask in case.asks]
    if case.failovers:
        tries += [
            dataclasses.replace(case, failovers=case.failovers[:k] + case.failovers[k + 1 :])
            for k in range(len(case.failovers))
        ]
    tries += [
        dataclasses.replace(case, **{name: None})
        for name in ("lost", "bad", "gained", "returns_s", "vanishes_s")
        if getattr(case, name) is not None
    ]
    tries += [dataclasses.replace(case, private_schedule=False)] if case.private_schedule else []
    tries += [dataclasses.replace(case, f=0.0)] if case.f else []
    tries += [dataclasses.replace(case, min_lend_s=0)] if case.min_lend_s else []
    for ask in case.asks:
        if ask.gangs > 1:
            fewer = dataclasses.replace(ask, gangs=1)
            tries.append(dataclasses.replace(case, asks=tuple(fewer if a is ask else a for a in case.asks)))
        less = [
            dataclasses.replace(ask, **{name: value})
            for name, value in (("more", ()), ("one_gang", False))
            if getattr(ask, name) != value
        ]
        tries += [dataclasses.replace(case, asks=tuple(a if b is ask else b for b in case.asks)) for a in less]
        plain = Ask(ask.name, ask.queue, ask.gang_gpus, ask.gangs, ask.start_s, ask.end_s, ask.together)
        if plain != ask:
            tries.append(dataclasses.replace(case, asks=tuple(plain if a is ask else a for a in case.asks)))
    return tries
