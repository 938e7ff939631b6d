"""`isonomy watch`: the cluster as it changes. It waits for events, it does not poll."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live

from pycontrol.cli import screens
from pycontrol.cli.client import ABOVE_0, Rm, Unreachable, output_option, rm_address
from pycontrol.cli.tables import clock, lines

WAIT_S = 10
BACK_OFF_S = 2.0
EVENTS_SHOWN = 12
EVENTS_AT_ONCE = 200
Batches = Iterator[tuple[list[dict[str, Any]], str]]


def _batches(rm: Rm, end_s: float | None) -> Batches:
    """(events, problem) as they come, over restarts of the control plane; no events when the wait has passed or it is
    away."""
    following, idle = -1, threading.Event()
    while (left_s := WAIT_S if end_s is None else end_s - time.monotonic()) > 0:
        wait, asked_s, events, problem = max(1, int(min(WAIT_S, left_s))), time.monotonic(), [], ""
        more = {"since": following, "wait_s": wait, "limit": EVENTS_AT_ONCE}
        try:
            answer = rm.get("events", wait + 20.0, **({"limit": EVENTS_SHOWN} if following < 0 else more))
            events, following = answer["events"], answer["next"]
        except Unreachable as e:
            if following < 0:
                raise
            problem = e.message
        # beyond WATCHERS_MAX the control plane answers without a wait
        pause = problem or (not events and time.monotonic() - asked_s < wait)
        yield events, problem
        if pause:
            idle.wait(min(BACK_OFF_S, left_s))


@click.command("watch")
@click.option("--for", "seconds", type=ABOVE_0, help="Stop after this many seconds.")
@output_option
def watch_command(seconds: float | None, output: str) -> None:
    """The cluster, live: nodes, queue and events. Ctrl-C ends it.

    Where the output is no terminal, one line an event; with -o json, one JSON object an event.
    """
    end_s = None if seconds is None else time.monotonic() + seconds
    rm = Rm(rm_address())
    try:
        if output == "json" or not sys.stdout.isatty():
            _plain(_batches(rm, end_s), output)
        else:
            _live(rm, _batches(rm, end_s))
    except KeyboardInterrupt:
        click.echo()


def _plain(batches: Batches, output: str) -> None:
    said = ""
    for events, problem in batches:
        for event in events:
            click.echo(json.dumps(event) if output == "json" else line(event))
        if problem and problem != said:
            click.echo(f"waiting: {problem}", err=True)
        said = problem


def line(event: dict[str, Any]) -> str:
    """An event in one line."""
    return f"{clock(event['at_s'])} {event['text']}"


def _live(rm: Rm, batches: Batches) -> None:
    newest: deque[dict[str, Any]] = deque(maxlen=EVENTS_SHOWN)
    picture: Group | None = None
    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as live:
        for events, problem in batches:
            newest.extend(events)
            if problem:
                live.update(lines(f"waiting: {problem}", "", picture), refresh=True)
                continue
            try:
                status, queue = screens.status(rm.get("status")), screens.short_queue(rm.get("queue"))
                picture = lines(status, "", queue, "", *map(line, newest))
            except Unreachable:
                continue  # the next wait for events says so
            live.update(picture, refresh=True)
