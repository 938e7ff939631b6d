"""A policy that delegates to one policy per virtual cluster (HiveD, section 3: any scheduler runs inside a VC)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot
from pycontrol.policies.policy_port import Policy


@dataclass(frozen=True)
class ByVirtualCluster:
    """Delegates each round to the policy of its virtual cluster; `default` serves those that name none."""

    default: Policy
    policies: Mapping[str, Policy] = field(default_factory=dict)

    def of(self, vc: str) -> Policy:
        """The policy of a virtual cluster."""
        return self.policies.get(vc, self.default)

    @property
    def name(self) -> str:
        """The name of the default policy."""
        return self.default.name

    @property
    def asks_agents(self) -> bool:
        """Whether the default policy asks Agents; for that of a virtual cluster see `of`."""
        return self.default.asks_agents

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """The offer of the policy of the snapshot's virtual cluster."""
        return self.of(snapshot.vc).offer(snapshot)

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan of the policy of the snapshot's virtual cluster."""
        return self.of(snapshot.vc).decide(snapshot, bids, rng)


def policies_in(policy: Policy) -> tuple[Policy, ...]:
    """The policies that decide: several where virtual clusters have their own."""
    return (policy.default, *policy.policies.values()) if isinstance(policy, ByVirtualCluster) else (policy,)


def policy_for(policy: Policy, vc: str) -> Policy:
    """The policy that decides for a virtual cluster."""
    return policy.of(vc) if isinstance(policy, ByVirtualCluster) else policy
