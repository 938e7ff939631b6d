"""The inputs (events) and the outputs (effects) of the Arbiter.

The Arbiter is a pure state machine: `handle(event, now) -> [effect]`. Its driver, or the simulator, carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pycontrol.model.auction import Bid, Contention, Demand, HeldGrant, Plan, Snapshot
from pycontrol.model.cluster import Ask, Container, ModeSwitch, Node, Queue, YarnApp
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

# ---- events: the cluster


@value
class ClusterSnapshot:
    """The whole state of the cluster, sent after the ResourceManager or the control plane started."""

    ready: bool
    nodes: tuple[Node, ...]
    apps: tuple[YarnApp, ...]
    asks: tuple[Ask, ...]
    containers: tuple[Container, ...]
    queues: tuple[Queue, ...] = ()
    rm_life: str = ""
    """Id of this run of the ResourceManager's scheduler; empty: not known."""
    switch: ModeSwitch = ModeSwitch()
    """In other modes than on the cluster is never ready; in mode off the snapshot has nothing else."""
    down: tuple[NodeDown, ...] = ()
    """Nodes that are not there, and why."""


@value
class NodeUp:
    """A node registered, or its resources, health, partition, decommissioning or use changed."""

    node: Node


@value
class NodeDown:
    """A node is lost, decommissioned or unhealthy."""

    node_id: str
    reason: str = ""


@value
class ClusterChanged:
    """Queues were made or removed, or nodes that are not there were taken out: these are all."""

    queues: tuple[Queue, ...]
    down: tuple[NodeDown, ...] = ()


@value
class AppAdded:
    """An application was accepted by the ResourceManager."""

    app: YarnApp


@value
class AppUpdated:
    """An application was moved to another queue, or its priority changed."""

    app: YarnApp


@value
class AppRemoved:
    """An application ended."""

    app_id: str
    final_state: str = ""


@value
class AttemptAdded:
    """An attempt of an application began."""

    attempt_id: str
    app_id: str


@value
class AttemptRemoved:
    """An attempt ended; its asks are void."""

    attempt_id: str
    app_id: str


@value
class AskChanged:
    """An ask with GPUs was made, changed or (count 0) withdrawn."""

    ask: Ask


@value
class ContainerUp:
    """A container with GPUs was allocated, recovered or launched."""

    container: Container
    running: bool = False


@value
class ContainerGone:
    """A container ended."""

    container_id: str


@value
class DirectiveDone:
    """The result of a directive. `container_id`: the container of a successful Place."""

    directive_id: str
    ok: bool
    container_id: str = ""
    reason: str = ""
    machine_at_fault: bool = False
    """Whether the cause of a refusal lies with the machine, whoever asks."""
    excluded: bool = False
    """Whether the app excludes the machine, so that it would be refused again at once."""


@value
class ClusterReady:
    """The ResourceManager finished recovering."""


@value
class ClusterLost:
    """The connection to the plugin is lost: leases are suspended."""


# ---- events: Agents


@value
class AgentUp:
    """An Agent's stream began with Register."""

    app_id: str
    attempt_id: str
    app_scheduler: str
    demand: Demand
    grant_ids: tuple[str, ...] = ()
    user: str = ""
    """The user to whom its token was issued."""


@value
class AgentLost:
    """An Agent's stream ended."""

    app_id: str


@value
class WorkerSteps:
    """What a worker itself reported, newest values: relayed by the control plane, so that no Agent can change it."""

    worker_id: str
    step: int
    iter_time_s: float
    """Seconds of an iteration; 0: not told."""
    until_step: int = 0
    """The step up to which it was told to train; 0: not known."""
    count: int = 1
    """Iterations with this time."""
    saved_s: float = 0.0
    """When it told its newest complete checkpoint, Unix seconds; 0: none since its last report."""


@value
class RhoReported:
    """Answer to `SendAskRho`."""

    app_id: str
    round_id: str
    rho: float
    demand: Demand
    phases: tuple[tuple[float, ...], ...] | None = None
    """Serial GPU-seconds left by phase and job, from which its rho follows; None: not known, so it is not checked."""
    jobs: tuple[str, ...] = ()
    """The ids of the first phase's jobs, in its order; empty: not known."""
    steps: tuple[WorkerSteps, ...] = ()
    """What its workers reported since the Agent's last message with steps."""


@value
class BidReceived:
    """Answer to `SendOffer`; `bid` is None if it could not be read, and `problem` says why."""

    app_id: str
    round_id: str
    bid: Bid | None
    problem: str = ""


@value
class WorkerPlan:
    """One worker of a gang: a job's tasks on one machine, with its GPUs and the ask for its container."""

    worker_id: str
    job_id: str
    gpus: tuple[Gpu, ...]
    allocation_request_id: int
    container_id: str = ""
    """The app's container that goes on with it; empty: a new one."""

    @property
    def host(self) -> str:
        """The machine of its GPUs."""
        return self.gpus[0].host


@value
class UsePlanned:
    """An Agent's plan for GPUs that it holds: the workers of whole gangs."""

    app_id: str
    use_id: str
    workers: tuple[WorkerPlan, ...]


@value
class GpusReleased:
    """GPUs that the app releases before their leases end."""

    app_id: str
    gpus: frozenset[Gpu]


@value
class JobProgress:
    """The progress of a job. `launches` counts gang launches; restarts are launches - 1."""

    job_id: str
    state: str
    step: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    iter_time_s: float = 0.0
    slowdown: float = 0.0
    gpus: int = 0
    rung: int = 0
    launches: int = 0
    worker_failures: int = 0
    configuration: Mapping[str, str] = field(default_factory=dict)
    metric: float | None = None
    """The value by which jobs are compared."""
    until_step: int = 0
    """The step until which it trains now, by its script where only that knows; 0: not known."""
    note: str = ""
    """A note for its user."""
    checkpoints_failed: int = 0
    """Failed checkpoints since the newest complete one."""
    lost_steps: int = 0
    """Steps that are trained again, since launches ended without a checkpoint of them."""
    lost_gpu_s: float = 0.0
    """The GPU-seconds that these had taken."""
    hangs: bool = False
    """Whether all its workers live and none makes a step; the note says more."""


@value
class ProgressReported:
    """An Agent's progress report."""

    app_id: str
    demand: Demand
    jobs: tuple[JobProgress, ...]
    rho: float = 0.0
    links: tuple[tuple[str, str], ...] = ()
    """(label, address) for its page."""
    steps: tuple[WorkerSteps, ...] = ()
    """What its workers reported since the Agent's last message with steps."""
    stepwise_left_gpu_s: float | None = None
    """The work left by the steps that its scripts say, for estimates alone; None: not known."""


@value
class AgentDone:
    """The app has found its best model, or failed."""

    app_id: str
    succeeded: bool
    message: str = ""
    best_job_id: str = ""
    best_configuration: Mapping[str, str] = field(default_factory=dict)
    best_accuracy: float = 0.0
    work_done_gpu_s: float = 0.0
    model_path: str = ""
    metric: str = ""
    """The name of the value by which jobs were compared."""
    best_metric: float | None = None


# ---- events: the operator, time, the solver


@value
class OperatorCommand:
    """A command of the operator: kill APP, drain HOST, undrain HOST, pause, resume, boost TARGET, limits of ACCOUNT."""

    verb: str
    target: str = ""
    user: str = ""
    for_s: float = 0.0
    """How long a boost lasts; 0 ends it."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The limits of the account (fields of `Limits`)."""


@value
class ExchangePosted:
    """A virtual cluster offers or requests cells, or withdraws one (`verb`). A lot is (chain, cell type, count)."""

    verb: str
    posting_id: str
    vc: str
    lot: tuple[str, str, int] = ("", "", 0)
    end_s: float = 0.0
    in_return: tuple[str, str, int] | None = None
    expires_s: float | None = None
    """When a request that was not matched lapses; None: at its end."""


@value
class StandbyRestored:
    """The state that the active control plane stored for its standby (`Durable.kept`)."""

    data: Mapping[str, Any]
    epoch: int = 1
    """The epoch of the control plane that continues."""


@value
class Tick:
    """Time has passed."""


@value
class ClockStepped:
    """The clock was set forward, or the machine slept: no app could use the time that passed."""


@value
class ClusterTime:
    """The ResourceManager's clock when it sent the following events, Unix seconds."""

    at_s: float


@value
class Decided:
    """The policy has decided a round; `problem` says how it failed."""

    round_id: str
    plan: Plan | None
    problem: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """App id -> the policy's failure with it, for apps left out of the plan."""


OfApps = AppAdded | AppUpdated | AppRemoved | AttemptAdded | AttemptRemoved | AskChanged | ContainerUp | ContainerGone
OfCluster = ClusterSnapshot | NodeUp | NodeDown | ClusterChanged | DirectiveDone | ClusterReady | ClusterLost
OfAgents = AgentUp | AgentLost | RhoReported | BidReceived | UsePlanned | GpusReleased | ProgressReported | AgentDone
OfControlPlane = OperatorCommand | ExchangePosted | StandbyRestored | Tick | ClockStepped | ClusterTime | Decided
Event = OfApps | OfCluster | OfAgents | OfControlPlane

# ---- effects: to Agents


@value
class SendRegistered:
    """Answer to `AgentUp`: every GPU that the app holds."""

    app_id: str
    contention: Contention
    grants: tuple[HeldGrant, ...]


@value
class SendHosts:
    """Tells an Agent that the machines changed."""

    app_id: str


@value
class SendAskRho:
    """Asks an Agent for the app's rho without its ending GPUs."""

    app_id: str
    round_id: str
    contention: Contention
    ending: tuple[Gpu, ...]
    deadline_s: float


@value
class SendOffer:
    """Offers an Agent all GPUs of the round and asks for one bid."""

    app_id: str
    round_id: str
    contention: Contention
    machines: Mapping[str, int]
    ending: tuple[Gpu, ...]
    deadline_s: float


@value
class SendGrant:
    """Grants an app a lease for each GPU, or renews its leases (`renewal`): then nothing restarts."""

    app_id: str
    round_id: str
    grant: HeldGrant
    renewal: bool = False
    leftover: bool = False


@value
class SendRevoke:
    """Tells an Agent to give these GPUs back by the deadline, in `left_s` seconds."""

    app_id: str
    gpus: tuple[Gpu, ...]
    deadline_s: float
    left_s: float
    reason: str


@value
class SendUseReply:
    """Accepts or refuses an Agent's `UsePlanned`."""

    app_id: str
    use_id: str
    accepted: bool
    reason: str = ""


@value
class SendFinish:
    """Tells an Agent to end its app."""

    app_id: str
    reason: str


# ---- effects: to YARN, and inside the control plane


@value
class Place:
    """Allocates a container for an ask, on this node with these GPUs."""

    directive_id: str
    ask: Ask
    node_id: str
    gpus: tuple[Gpu, ...]
    lease_id: str


@value
class Preempt:
    """Announces the container's end at the deadline (YARN's PreemptionMessage)."""

    directive_id: str
    container_id: str
    deadline_s: float


@value
class Kill:
    """Ends the container now."""

    directive_id: str
    container_id: str
    reason: str
    again: bool = False
    """Whether its app lost it to others and may ask again, so that its end is no failure."""


@value
class Solve:
    """Runs the policy's `decide`; the answer is `Decided`."""

    snapshot: Snapshot
    bids: Mapping[str, Bid]
    seed: int


AgentEffect = SendRegistered | SendHosts | SendAskRho | SendOffer | SendGrant | SendRevoke | SendUseReply | SendFinish
Directive = Place | Preempt | Kill
Effect = AgentEffect | Directive | Solve
