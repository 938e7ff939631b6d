"""`isonomy replay` for cases of kind `cells`: a cluster, and a sequence of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.inspect import vc_cells
from pycontrol.cells.layout import Layout
from pycontrol.cells.recovery import adopt, adopt_all
from pycontrol.cells.values import CellsError, Worker
from pycontrol.config import ConfigError
from pycontrol.lab.hived.groups import GroupCells
from pycontrol.lab.hived.preemption import PriorityRequest
from pycontrol.lab.hived.states import Decision, GroupState, LeafState, PlacementOutcome, PriorityGroup
from pycontrol.lab.solve.kept_cells import dump, load

OPERATIONS = frozenset(
    {
        "schedule",
        "delete_allocated",
        "delete_unallocated",
        "set_bad",
        "set_healthy",
        "reconfigure",
        "build_cluster",
        "assert_group",
        "assert_vc_cells",
        "assert_leaves",
        "assert_all_free",
    }
)


def _error(reason: object) -> dict[str, Any]:
    """The result of a step that failed."""
    return {"outcome": "error", "reason": " ".join(str(reason).split()) or type(reason).__name__}


class Replay:
    """Carries out a case's steps on the production cells. Workers are named; a group ends with its last worker."""

    def __init__(self, case: Mapping[str, Any], forced: bool) -> None:
        self.steps: list[dict[str, Any]] = case["steps"]
        self.forced = forced
        self.cluster: Mapping[str, Any] = case["cluster"]
        self.infeasible: dict[str, Any] | None = None
        """The answer to steps on the case's own cluster, if its assignment is infeasible."""
        try:
            self.cells = self._built(self.cluster)
        except (ConfigError, AssertionError) as error:
            self.cells, self.infeasible = GroupCells(Layout((), ())), _error(error)
        self.requests: dict[str, PriorityRequest] = {}
        self.members: dict[str, dict[str, int]] = {}
        """By group: {worker name: its index among the group's workers, or -1 without a place}."""
        self.pods: dict[str, str] = {}

    @staticmethod
    def _built(cluster: Mapping[str, Any]) -> GroupCells:
        known = {k: v for k, v in cluster.items() if k in CellsFile.model_fields}
        return GroupCells(layout(CellsFile.model_validate(known)))

    def run(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """(step, result) of each step; a step that fails gives an error and changes nothing."""
        for at, step in enumerate(self.steps):
            carry_out = getattr(self, f"_{step['op']}", None) if step.get("op") in OPERATIONS else None
            if carry_out is None:
                yield step.get("step"), _error(f"there is no operation {step.get('op')}")
                continue
            if self.infeasible and "cluster" not in step:
                yield step.get("step"), self.infeasible
                continue
            before = self._state()
            try:
                result = carry_out(step, at)
            except (CellsError, ConfigError, ValueError, AssertionError, StopIteration) as error:
                result = _error(error)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                result = _error(f"the step is not well-formed: {error!r}")
            if result.get("outcome") == "error":
                self._restore(before)
            yield step.get("step"), result

    def _state(self) -> tuple[Any, ...]:
        """All that a step may change."""
        members = {name: dict(places) for name, places in self.members.items()}
        return self.cells.layout, dump(self.cells), dict(self.requests), members, dict(self.pods)

    def _restore(self, state: tuple[Any, ...]) -> None:
        found, cells, self.requests, self.members, self.pods = state
        self.cells = load(found, cells)

    def _schedule(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        asked, pod = step["request"], step["pod"]
        name = asked["group"]["name"]
        try:
            request = self._request(step)
            wanted = asked["leaf_number"]
            group = self.cells.groups.get(name)
            if wanted not in {gpus for _, gpus in request.members}:
                raise CellsError(f"{pod} asks for {wanted} GPUs, but its group has no such member")
            if group is not None and group.state is not GroupState.PREEMPTING:
                self._room(name, group, wanted, pod)
            before = None if step.get("commit_if_bound", True) else self._state()
            decision = self.cells.request(request, preempt=step.get("phase", "preempting") == "preempting")
        except CellsError as error:
            return {"outcome": "error", "reason": str(error), **self._lazily()}
        self.requests[name] = request
        answer = self._answer(decision, name, pod, wanted)
        if decision.outcome is PlacementOutcome.PLACED:
            if before is not None:
                self._restore(before)
                return answer
            self.pods[pod] = name
        elif decision.outcome is PlacementOutcome.PREEMPT and name in self.cells.groups:
            self.members.setdefault(name, {})[pod] = -1
            self.pods[pod] = name
        if self.forced:
            self._force(step, at)
        return answer

    def _request(self, step: dict[str, Any]) -> PriorityRequest:
        asked = step["request"]
        hosts = step.get("suggested_nodes", "all")
        free = hosts == "all" or asked.get("ignore_suggested_nodes") or self._all_hosts() <= set(hosts)
        return PriorityRequest(
            asked["group"]["name"],
            asked["vc"],
            asked["priority"],
            tuple((m["pods"], m["leaf_cells"]) for m in asked["group"]["members"]),
            asked.get("pinned_cell") or None,
            gpu_type=asked.get("leaf_type") or None,
            lazy=bool(asked.get("lazy_preemption")),
            hosts=None if free else frozenset(hosts),
        )

    def _all_hosts(self) -> set[str]:
        return {host for space in self.cells.spaces for host in space.chain.hosts}

    def _room(self, name: str, group: PriorityGroup, wanted: int, pod: str) -> int:
        """A worker's index in a placed group: its own, or the first free one of its size."""
        taken = self.members.setdefault(name, {})
        if taken.get(pod, -1) >= 0:
            return taken[pod]
        for at, (_, indices) in enumerate(group.workers):
            if len(indices) == wanted and at not in taken.values():
                return at
        raise CellsError(f"group {name} has no place left for another worker of {wanted} GPUs")

    def _answer(self, decision: Decision, name: str, pod: str, wanted: int) -> dict[str, Any]:
        if decision.outcome is PlacementOutcome.WAIT:
            return {"outcome": "wait", "reason": decision.reason, **self._lazily()}
        if decision.outcome is PlacementOutcome.PREEMPT:
            pods = [p for victim in decision.victims for p in self.members.get(victim, {})]
            victims = {"victim_groups": list(decision.victims), "victim_pods": pods}
            return {"outcome": "preempt", **victims, **self._lazily()}
        at = self._room(name, self.cells.groups[name], wanted, pod)
        self.members[name][pod] = at
        host, indices = self.cells.groups[name].workers[at]
        return {"outcome": "bind", "node": host, "leaf_cells": list(indices), **self._lazily()}

    def _lazily(self) -> dict[str, Any]:
        return {"lazy_preempted_groups": [g.name for g in self.cells.groups.values() if g.lazily_preempted]}

    def _force(self, step: dict[str, Any], at: int) -> None:
        """Place a group where this and the later steps expect its workers."""
        name = step["request"]["group"]["name"]
        expected: dict[str, Worker] = {}
        for later in self.steps[at:]:
            if later["op"] == "schedule" and later["request"]["group"]["name"] == name:
                want = later["expect"]
                if want["outcome"] == "bind":
                    expected.setdefault(later["pod"], (want["node"], tuple(want["leaf_cells"])))
        group = self.cells.groups.get(name)
        if step["kind"] != "tie-break" or step["expect"]["outcome"] != "bind" or group is None:
            return
        if group.state is GroupState.PREEMPTING or sum(len(i) for _, i in expected.values()) != group.request.gpus:
            return
        if {(h, frozenset(i)) for h, i in expected.values()} == {(h, frozenset(i)) for h, i in group.workers}:
            places = list(group.workers)
        else:
            self.cells.release(name)
            adopt(self.cells, self.requests[name], tuple(expected.values()))
            places = list(self.cells.groups[name].workers)
        self.members[name] = {
            pod: next(n for n, (h, i) in enumerate(places) if h == host and set(i) == set(indices))
            for pod, (host, indices) in expected.items()
        }

    def _delete_allocated(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        pod = step["pod"]
        name = self.pods.pop(pod, None)
        group = self.cells.groups.get(name) if name is not None else None
        if name is None or group is None:
            return {}
        places = self.members.setdefault(name, {})
        places.pop(pod, None)
        left = [p for p, of in self.pods.items() if of == name]
        if group.state is not GroupState.PREEMPTING:  # workers without a known place do not keep one
            left = [p for p in left if places.get(p, -1) >= 0]
        if not left:
            self.cells.release(name)
            del self.members[name]
            self.pods = {p: of for p, of in self.pods.items() if of != name}
        return {}

    _delete_unallocated = _delete_allocated

    def _set_bad(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        self.cells.set_health(step["node"], False)
        return {}

    def _set_healthy(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        self.cells.set_health(step["node"], True)
        return {}

    def _reconfigure(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        groups, kept = self.cells.groups, dict[str, list[str]]()
        for pod in step["replay_allocated"]:
            name = self.pods.get(pod)
            if name in groups and groups[name].state is not GroupState.PREEMPTING:
                kept.setdefault(name, []).append(pod)
        running = [(self.requests[name], groups[name].workers) for name in kept]
        found = adopt_all(lambda: self._built(step["cluster"]), running)
        assert isinstance(found.cells, GroupCells)
        self.cells, self.infeasible = found.cells, None
        for name in found.gone:  # none of its GPUs is in the cluster any more
            del kept[name]
        self.members = {name: places for name, places in self.members.items() if name in kept}
        self.pods = {pod: name for pod, name in self.pods.items() if name in kept and pod in kept[name]}
        return {}

    def _build_cluster(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        try:
            self._built(step.get("cluster", self.cluster))
        except (
            ConfigError,
            CellsError,
            ValueError,
            AssertionError,
            LookupError,
            TypeError,
            AttributeError,
            StopIteration,
        ) as error:
            return _error(error)
        return {"outcome": "ok", "reason": "the assignment is feasible"}

    def _assert_group(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        group = self.cells.groups.get(step["group"])
        if group is None:
            return {"exists": False}
        nodes = list(dict.fromkeys(host for host, _ in group.workers))
        return {
            "exists": True,
            "state": group.state.value,
            "lazy_preempted": group.lazily_preempted,
            "nodes": nodes,
        }

    def _assert_vc_cells(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        cells = [c for c in vc_cells(self.cells, step["vc"]) if c["chain"] == step["chain"]]
        cells = [c for c in cells if c["type"] == step["cell_type"]]
        wanted = [c for c in cells if step.get("which", "all") == "all" or not c["used"]]
        return {"healthy": sum(c["healthy"] for c in wanted), "bad": sum(not c["healthy"] for c in wanted)}

    def _assert_leaves(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        leaves = []
        wanted = {(leaf["node"], leaf["leaf_index"]) for leaf in step["leaves"]} if step.get("leaves") else None
        for space in self.cells.spaces:
            for leaf in range(len(space.chain.indices)):
                gpu = space.chain.gpu(leaf)
                if wanted is not None and (gpu.host, gpu.index) not in wanted:
                    continue
                user = space.borrower[leaf] or space.owner_of(leaf)
                priority = None if user is None else user.priority
                leaves.append({"node": gpu.host, "leaf_index": gpu.index, "used_priority": priority})
        return {"leaves": leaves}

    def _assert_all_free(self, step: dict[str, Any], at: int) -> dict[str, Any]:
        states = [
            self.cells.leaf_state(space, leaf) for space in self.cells.spaces for leaf in range(len(space.borrower))
        ]
        reserved = sum(state in (LeafState.RESERVED, LeafState.RESERVING) for state in states)
        return {"used": sum(state is LeafState.USED for state in states), "reserved": reserved}


def replay_cells(case: Mapping[str, Any], forced: bool) -> Iterator[dict[str, Any]]:
    """One result per step."""
    for number, result in Replay(case, forced).run():
        yield {"kind": "cells", "id": case.get("id"), "step": number, "result": result}
