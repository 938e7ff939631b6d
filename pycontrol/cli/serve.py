"""`isonomy serve`: runs the control plane."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import structlog

from pycontrol.bridge.server import BridgeError
from pycontrol.cli.client import failing, file_option
from pycontrol.config import ConfigError, load_config
from pycontrol.daemon.control_plane import ControlPlane
from pycontrol.hadoopconf.check import checked
from pycontrol.policies import registry
from pycontrol.rpc.agent_server import ServerError
from pycontrol.runtime.journal import JournalError
from pycontrol.secretfile import SecretFileError


def on_one_line(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A log line's values with control characters as escapes: no name can end the line and begin a false one."""
    for key, value in event.items():
        if key != "exception" and isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return event


def set_up_logging(as_json: bool, level: str) -> None:
    """Log lines on stderr, for people or as JSON."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr)
    renderer = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            on_one_line,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


@click.command("serve")
@file_option("--config", "file", required=True, help="isonomy.yaml")
@click.option("--policy", type=click.Choice(registry.names()), help="Instead of the file's policy and its options.")
@click.option("--log-json", is_flag=True, help="Log lines as JSON.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def serve_command(file: Path, policy: str | None, log_json: bool, log_level: str) -> None:
    """Run the control plane until SIGTERM. Prints `ready` once both ports are open."""
    set_up_logging(log_json, log_level)
    raise_descriptor_limit()
    share_the_interpreter()
    with failing(ConfigError):
        config = checked(load_config(file), file.name)
    os.umask(0o077)  # its files tell of all users' apps
    refused = failing(ConfigError, JournalError, SecretFileError, ServerError, BridgeError)
    with refused, failing(OSError, what=str(config.state_dir)):
        plane = ControlPlane(config, policy or config.policy)
        plane.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plane.stop())
    click.echo(
        f"ready: plugin on {config.bridge.host}:{config.bridge.port},"
        f" Agents on {config.agents.host}:{config.agents.port}, state in {config.state_dir}"
    )
    click.echo(plane.notice)
    sys.exit(plane.run())


def raise_descriptor_limit() -> None:
    """As many file descriptors as this process may have: each Agent and worker has one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # no limit at all may be more than the kernel grants
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def share_the_interpreter() -> None:
    """Keep the Arbiter and readers from holding each other up in one interpreter.

    A collection of all cycles holds all threads, for 0.15 s with 10,000 GPUs, and came several times a second while
    views were read: old objects are left to reference counts, but for once an hour (`ControlPlane.run`). And a thread
    that wants to go on waits for 0.1 ms, not 5: each round trip of an Agent does so several times.
    """
    gc.freeze()
    gc.set_threshold(2_000, 10, 1 << 30)
    sys.setswitchinterval(0.0001)
