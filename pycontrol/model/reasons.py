"""The two closed lists of reasons: why an app has no more GPUs, and why an app loses a GPU."""

from __future__ import annotations

import enum

from pycontrol.model.value import value


class Pending(enum.StrEnum):
    """Why an app has no more GPUs than it has."""

    RUNNING = "Running"
    IDLE = "Idle"
    FINISHED = "Finished"
    UNKNOWN = "Unknown"
    EXCEEDS_CLUSTER_SIZE = "ExceedsClusterSize"
    NO_MACHINE_LARGE_ENOUGH = "NoMachineLargeEnough"
    EXCEEDS_GPU_TYPE = "ExceedsGpuType"
    QUEUE_LIMIT = "QueueLimit"
    ACCOUNT_LIMIT = "AccountLimit"
    PAUSED = "Paused"
    RECOVERY_IN_PROGRESS = "RecoveryInProgress"
    SHADOW = "Shadow"
    OFF = "Off"
    MODE_UNREADABLE = "ModeUnreadable"
    AGENT_AWAY = "AgentAway"
    LATE_RHO = "LateRho"
    LATE_BID = "LateBid"
    BAD_BID = "BadBid"
    BAD_REPORT = "BadReport"
    WAITING_FOR_REVOCATION = "WaitingForRevocation"
    STARTING = "Starting"
    REFUSED = "Refused"
    NOT_ALLOWED_THERE = "NotAllowedThere"
    CELLS_TOO_SMALL = "CellsTooSmall"
    CELLS_LENT = "CellsLent"
    CELLS_BAD = "CellsBad"
    CELLS_IN_USE = "CellsInUse"
    NO_SUCH_CELLS = "NoSuchCells"
    NO_ROOM_WITHIN = "NoRoomWithin"
    OPPORTUNISTIC = "Opportunistic"
    NO_CELLS = "NoCells"
    HIDDEN_PAYMENT = "HiddenPayment"
    BID_NOTHING = "BidNothing"
    LOST_AUCTION = "LostAuction"
    NOT_OFFERED = "NotOffered"
    OUTRANKED = "Outranked"
    GANG_INCOMPLETE = "GangIncomplete"
    INTERACTIVE_LIMIT = "InteractiveLimit"
    GATHERING = "Gathering"
    HELD_FOR_GANG = "HeldForGang"
    NO_FREE_GPUS = "NoFreeGpus"
    WAITING_FOR_ROUND = "WaitingForRound"


SENTENCES = {
    Pending.RUNNING: "it has all the GPUs that it can use",
    Pending.IDLE: "it has no GPUs and wants none at present",
    Pending.FINISHED: "it has ended",
    Pending.UNKNOWN: "it has not asked for GPUs yet",
    Pending.EXCEEDS_CLUSTER_SIZE: "its gang is larger than the cluster (your error)",
    Pending.NO_MACHINE_LARGE_ENOUGH: "no machine, or rack, is large enough for its gang (your error)",
    Pending.EXCEEDS_GPU_TYPE: "its gang is larger than each GPU type that it may have (your error)",
    Pending.QUEUE_LIMIT: "its queue is at its limit",
    Pending.ACCOUNT_LIMIT: "a limit of its user, group or queue is reached",
    Pending.PAUSED: "an operator paused the rounds",
    Pending.SHADOW: "the mode is shadow: CapacityScheduler places GPUs, Isonomy only watches",
    Pending.OFF: "the mode is off: CapacityScheduler places GPUs",
    Pending.MODE_UNREADABLE: "the mode cannot be read: nothing new is placed",
    Pending.RECOVERY_IN_PROGRESS: "the cluster or the control plane is recovering",
    Pending.AGENT_AWAY: "its Agent is not connected",
    Pending.LATE_RHO: "its Agent did not report rho in time",
    Pending.LATE_BID: "its Agent did not bid in time",
    Pending.BAD_BID: "its bid was malformed",
    Pending.BAD_REPORT: "the policy failed on the numbers that its Agent reported",
    Pending.WAITING_FOR_REVOCATION: "its GPUs are still held by the app that lost them",
    Pending.STARTING: "its containers are being started",
    Pending.REFUSED: "machines with room refuse its containers",
    Pending.NOT_ALLOWED_THERE: "its asks or its node label keep it off the machines with room",
    Pending.CELLS_TOO_SMALL: "no cells of its virtual cluster can hold such a gang: it can only borrow",
    Pending.CELLS_LENT: "cells of its virtual cluster are lent to another",
    Pending.CELLS_BAD: "cells of its virtual cluster are on machines that are down or on bad GPUs",
    Pending.CELLS_IN_USE: "apps of its own virtual cluster use its cells",
    Pending.NO_SUCH_CELLS: "none of the cells that it may use match its request (your error)",
    Pending.NO_ROOM_WITHIN: "no cell of that level has enough free GPUs for its gang",
    Pending.OPPORTUNISTIC: "it asked for no guarantee: it runs only on GPUs that nobody else uses",
    Pending.NO_CELLS: "its queue owns no cells: it runs only on GPUs that nobody else uses",
    Pending.HIDDEN_PAYMENT: "it won, and gave these GPUs up as its payment",
    Pending.BID_NOTHING: "it bid for none of the GPUs on offer",
    Pending.LOST_AUCTION: "others gained more from the GPUs",
    Pending.NOT_OFFERED: "others are worse off and were offered the GPUs",
    Pending.OUTRANKED: "other apps came before it under its queue's policy",
    Pending.GANG_INCOMPLETE: "it has not asked for all containers of its gang yet",
    Pending.INTERACTIVE_LIMIT: "its user's interactive apps have all the GPUs that they may hold together",
    Pending.GATHERING: "GPUs are held for it until there are enough for its gang",
    Pending.HELD_FOR_GANG: "the GPUs that are free are held for another app's gang",
    Pending.NO_FREE_GPUS: "no GPUs have become free since it asked",
    Pending.WAITING_FOR_ROUND: "GPUs are free; a round is about to be held",
}


@value
class Reason:
    """A code of the closed list, with details for one app at one time."""

    code: Pending
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The reason as a sentence for users."""
        return f"{SENTENCES[self.code]}: {self.detail}" if self.detail else SENTENCES[self.code]

    def __str__(self) -> str:
        """The form in receipts' JSON; `read_reason` is the inverse."""
        return f"{self.code}: {self.detail}"


_CODES = {str(code): code for code in Pending}


def read_reason(text: str) -> Reason:
    """A reason from a receipt's JSON; text without a known code is the problem of a bid."""
    code, _, detail = text.partition(": ")
    return Reason(_CODES.get(code, Pending.BAD_BID), detail)


class EndReason(enum.StrEnum):
    """Why an app loses a GPU."""

    LOST_ROUND = "lost_round"
    """Other apps won the GPU in the round of its lease's end."""
    GUARANTEE = "guarantee"
    """The virtual cluster that owns the borrowed cells needs them."""
    BORROWED_SHARE = "borrowed_share"
    """It borrowed more than its virtual cluster's share of the idle GPUs."""
    LIMIT = "limit"
    """A limit of its user, group or queue was lowered, or a budget is used up."""
    MOVED = "moved"
    """It borrowed the GPU, and moves to its own virtual cluster's cells."""
    DRAINED = "drained"
    BAD_GPU = "bad_gpu"
    NODE_LOST = "node_lost"
    REFUSED = "refused"
    """The machine refuses its containers."""
    RELEASED = "released"
    """The app released it."""
    LAPSED = "lapsed"
    """The grant was not used in time."""
    APP_ENDED = "app_ended"
    CONTAINER_ENDED = "container_ended"
    TIME_LIMIT = "time_limit"
    """The time that an unmanaged app declared for its container is over."""
    IDLE = "idle"
    """The container of an interactive app used no CPU time."""
    UNKNOWN = ""
    """From a journal of 0.1, which has only the text."""


_BY_RULE = (EndReason.LOST_ROUND, EndReason.GUARANTEE, EndReason.BORROWED_SHARE, EndReason.LIMIT, EndReason.MOVED)
_BY_MACHINE = (EndReason.DRAINED, EndReason.BAD_GPU, EndReason.NODE_LOST, EndReason.REFUSED)
PREEMPTIONS = frozenset((*_BY_RULE, *_BY_MACHINE))
"""The end reasons that the app did not cause itself."""


@value
class Cause:
    """Why a lease ends, with a text that says more."""

    kind: EndReason
    text: str


_END_REASONS = {str(reason): reason for reason in EndReason}


def end_reason(name: str) -> EndReason:
    """The end reason with this value; UNKNOWN if there is none."""
    return _END_REASONS.get(name, EndReason.UNKNOWN)
