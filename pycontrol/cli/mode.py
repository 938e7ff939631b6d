"""`isonomy mode`: the switch, which the plugin in the ResourceManager keeps and obeys without a control plane."""

from __future__ import annotations

import click

from pycontrol.cli.client import Misused, Rm, output_option, rm_address
from pycontrol.cli.tables import Data, emit, moment


@click.command("mode")
@click.argument("mode", required=False, type=click.Choice(["on", "shadow", "off"]))
@click.option(
    "--queues", metavar="Q", help="Full paths as in root.research, by comma; root: all  [default: as stored]."
)
@output_option
def mode_command(mode: str | None, queues: str | None, output: str) -> None:
    """Switch Isonomy on, let it only watch (shadow), or switch it off.

    Alone it shows the mode, its queues, and who switched when. Off, the plugin is plain CapacityScheduler; shadow, the
    control plane watches CapacityScheduler. Running containers continue. The mode lies beside the ResourceManager's own
    state and holds after a restart and a failover; the control plane may be stopped. --queues: for these queues Isonomy
    serves asks for GPUs. Switching needs YARN's admin rights.
    """
    if mode is None and queues is not None:
        raise Misused("--queues: say on, shadow or off, too")
    server = Rm(rm_address())
    if mode is None:
        found = server.get("mode")
    else:
        found = server.post("mode", mode=mode, **({"queues": queues} if queues is not None else {}))
    emit(found, output, _draw)


def _draw(d: Data) -> str:
    queues = ", ".join(d["queues"]) or "all queues"
    if d["problem"]:
        said = f"nothing new with GPUs is placed, running containers stay: {d['problem']}"
    else:
        said = f"switched by {d['by']}, {moment(d['at_s'])}" if d["at_s"] else "never switched"
    lines = [d["mode"] + ("" if d["problem"] else f" for {queues}"), said, f"kept in {d['place']}"]
    if d["obsolete"]:
        lines.append(f"obsolete in yarn-site.xml, remove: {', '.join(d['obsolete'])}")
    return "\n".join(lines)
