"""No GPU of two owners, none that is bad, and no lease ends under its container."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.facts import Fact, LeaseEnded, LeaseGranted
from pycontrol.model.topology import Gpu
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Owners(Oracle):
    """Kinds `two owners`, `bad gpu` and `ended in use`."""

    def before(self, plane: Any, fact: Fact) -> None:
        """Checks a grant and an end."""
        if isinstance(fact, LeaseGranted):
            self._granted(plane, fact)
        elif isinstance(fact, LeaseEnded):
            self._ended(plane, fact)

    def _ended(self, plane: Any, fact: LeaseEnded) -> None:
        """Not while its container is there, unless its machine is gone."""
        a = plane.arbiter
        for gpu in fact.gpus:
            lease = self.oracles.shadow_of(plane).leases.get(gpu)
            there = a.cluster.container_at.get(gpu, "") if gpu.host in a.cluster.node_at else ""
            if lease is not None and there and there == lease.container_id:
                raise Violation("ended in use", f"{gpu} of {lease.app_id}, where {there} is: {fact.reason}", str(gpu))

    def _granted(self, plane: Any, fact: LeaseGranted) -> None:
        for gpu in fact.gpus:
            present, coming = (
                self.oracles.shadow_of(plane).leases.get(gpu),
                self.oracles.shadow_of(plane).reservations.get(gpu),
            )
            if gpu not in fact.after and present is not None:
                raise Violation("two owners", f"{gpu} is granted to {fact.app_id}, {present.app_id} has it", str(gpu))
            if gpu in fact.after and (present is None or coming is not None):
                raise Violation("two owners", f"{gpu} is promised to {fact.app_id} beside {coming}", str(gpu))
            if plane.arbiter.cluster.bad(gpu) and not self._adopted(plane, fact, gpu):
                raise Violation("bad gpu", f"{gpu} is out of order and granted to {fact.app_id}", str(gpu))

    @staticmethod
    def _adopted(plane: Any, fact: LeaseGranted, gpu: Gpu) -> bool:
        """Whether it says of a container that runs there what a lost journal said of it, rather than to start one."""
        cluster = plane.arbiter.cluster
        there = cluster.containers.get(cluster.container_at.get(gpu, ""))
        return gpu not in fact.after and there is not None and there.app_id == fact.app_id

    def placed(self, rm: Any, container: Any) -> None:
        """Checks that an allocated container's GPUs belong to no other."""
        if rm is not self.world.rm:
            return  # by one with which no AM communicates any more
        for gpu in container.gpus:
            at = Gpu(container.node_id.split(":")[0], gpu)
            lease = self.oracles.shadow.leases.get(at)
            if lease is not None and lease.app_id != container.app_id:
                held = rm.containers.values()
                if any(c.app_id == lease.app_id and gpu in c.gpus and c.node_id == container.node_id for c in held):
                    raise Violation("two owners", f"{at} of {lease.app_id} is {container.app_id}'s now", str(at))
