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
from pycontrol.cli.client import Rm, Unreachable, output_option, rm_address
from pycontrol.cli.tables import clock, lines

WAIT_S = 10
BACK_OFF_S = 2.0
EVENTS_SHOWN = 12
EVENTS_AT_ONCE = 200


class Follower:
    """Follows the events of a control plane, over its restarts."""

    def __init__(self, rm: Rm, end_s: float | None) -> None:
        self.rm, self._end_s, self._next = rm, end_s, -1
        self.problem = ""
        self._idle = threading.Event()

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Events as they come; an empty batch when the wait has passed or the control plane is away."""
        while (left_s := self._left_s()) > 0:
            try:
                answer = self._ask(min(WAIT_S, left_s))
            except Unreachable as e:
                if self._next < 0:
                    raise
                self.problem = e.message
                yield []
                self._idle.wait(min(BACK_OFF_S, max(0.0, self._left_s())))
                continue
            self.problem = ""
            self._next = answer["next"]
            yield answer["events"]

    def _left_s(self) -> float:
        return WAIT_S if self._end_s is None else self._end_s - time.monotonic()

    def _ask(self, wait_s: float) -> dict[str, Any]:
        if self._next < 0:
            return self.rm.get("events", limit=EVENTS_SHOWN)
        wait = max(1, int(wait_s))
        return self.rm.get("events", read_s=wait + 20.0, since=self._next, wait_s=wait, limit=EVENTS_AT_ONCE)


@click.command("watch")
@click.option("--for", "seconds", type=click.FloatRange(0, min_open=True), help="Stop after this many seconds.")
@output_option
def watch_command(seconds: float | None, output: str) -> None:
    """The cluster, live: nodes, queue and events. Ctrl-C ends it.

    Where the output is no terminal, one line an event; with -o json, one JSON object an event.
    """
    end_s = None if seconds is None else time.monotonic() + seconds
    follower = Follower(Rm(rm_address()), end_s)
    try:
        if output == "json" or not sys.stdout.isatty():
            _plain(follower, output)
        else:
            _live(follower)
    except KeyboardInterrupt:
        click.echo()


def _plain(follower: Follower, output: str) -> None:
    said = ""
    for events in follower.batches():
        for event in events:
            click.echo(json.dumps(event) if output == "json" else line(event))
        if follower.problem and follower.problem != said:
            click.echo(f"waiting: {follower.problem}", err=True)
        said = follower.problem


def line(event: dict[str, Any]) -> str:
    """An event in one line."""
    return f"{clock(event['at_s'])} {event['text']}"


def _live(follower: Follower) -> None:
    newest: deque[dict[str, Any]] = deque(maxlen=EVENTS_SHOWN)
    picture: Group | None = None
    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as live:
        for events in follower.batches():
            newest.extend(events)
            if follower.problem:
                live.update(lines(f"waiting: {follower.problem}", "", picture), refresh=True)
                continue
            try:
                picture = lines(
                    screens.status(follower.rm.get("status")),
                    "",
                    screens.short_queue(follower.rm.get("queue")),
                    "",
                    *map(line, newest),
                )
            except Unreachable:
                continue  # the next wait for events says so
            live.update(picture, refresh=True)
