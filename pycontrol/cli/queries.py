"""The commands that look: status, queue, jobs, explain, rounds."""

from __future__ import annotations

import click

from pycontrol.cli import screens
from pycontrol.cli.client import Rm, moment_s, output_option, rm_address
from pycontrol.cli.tables import emit


@click.command("status")
@output_option
def status_command(output: str) -> None:
    """The cluster at a glance: GPUs, nodes, policy, the last round.

    \b
    isonomy status
    isonomy status -o json
    """
    emit(Rm(rm_address()).get("status"), output, screens.status)


@click.command("queue")
@output_option
def queue_command(output: str) -> None:
    """Apps that share the cluster: what each holds, its place in the order of service, and why it has no more.

    Apps that can use more GPUs come first, in the order in which the policy in force serves them; the column before
    LEASE is what it orders by (DUE: the virtual finish time, when an equal share would have finished the app).
    GPUS is held/wanted in all; LEASE is the time until its next lease ends.
    """
    emit(Rm(rm_address()).get("queue"), output, screens.queue)


@click.command("jobs")
@click.option("--mine", is_flag=True, help="Only yours.")
@click.option("--since", default="1d", show_default=True, metavar="TIME", help="30d, 12h, or 2026-11-20T14:00.")
@output_option
def jobs_command(mine: bool, since: str, output: str) -> None:
    """Apps that run or have ended since a time, newest first: what each used, its best result, and where it is.

    \b
    isonomy jobs --mine --since 7d
    isonomy get my-sweep               fetches what that line names
    """
    client = Rm(rm_address())
    found = client.get("apps")
    since_s = moment_s(since, found["now_s"], "--since")
    rows = [
        a
        for a in found["apps"]
        if (a["finished_s"] is None or a["finished_s"] >= since_s) and (not mine or a["user"] == client.user)
    ]
    emit({**found, "apps": sorted(rows, key=lambda a: -a["submitted_s"])}, output, screens.jobs)


@click.command("explain")
@click.argument("app")
@click.option("-n", "--rounds", type=click.IntRange(1, 200), default=5, show_default=True, help="How many rounds back.")
@click.option("--why-not", is_flag=True, help="The smallest changes that would give it GPUs now.")
@output_option
def explain_command(app: str, rounds: int, why_not: bool, output: str) -> None:
    """Why APP got what it got: rho and its terms, leases, jobs, bids, payments.

    With --why-not: which smaller gang, other type, place or queue, which lease given back, which machine or limit
    would give it GPUs now. Each answer was played in the real round, on a copy of the present state.

    \b
    isonomy explain my-sweep
    isonomy explain 0007 -n 20         the number that ends the id is enough
    isonomy explain 0007 --why-not
    """
    if why_not:
        emit(Rm(rm_address()).get("why-not", app=app), output, screens.why_not)
        return
    emit(Rm(rm_address()).get("explain", app=app, n=rounds), output, screens.explain)


@click.command("rounds")
@click.argument("n", type=click.IntRange(1, 200), default=10)
@output_option
def rounds_command(n: int, output: str) -> None:
    """Receipts of the last N rounds (10): offer, bids, winners, c, leftovers, solve time.

    BIDS shows for each bidder its rho with nothing, then what it won and the rho with that. A winner keeps the
    fraction c of its gangs; the rest is its hidden payment. -o json has everything.
    """
    emit(Rm(rm_address()).get("rounds", n=n), output, screens.rounds)
