"""The faults: each kind as a method, with its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pycontrol.policies import registry
from tests.faults.adversary import Liar, flood, mallory, rest
from tests.faults.apps import AgentMaster
from tests.faults.schedule import NODES

Fault = dict[str, Any]
MUTE_S = 11.0
"""Longer, and the stream ends by its keepalive."""


class Injector:
    """Injects the faults of a schedule, and ends them all when told."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.sim = world.sim
        self._open: list[Callable[[], object]] = []
        self.healed = False

    def inject(self, f: Fault) -> None:
        """Begins one fault."""
        self.sim.tell("fault", f"{f['kind']} for {f['for_s']:.0f} s: host {f['host']}, app {f['app']}, {f['way']}")
        getattr(self, f"do_{f['kind']}")(f)

    def heal(self) -> None:
        """Ends all faults now."""
        self.healed = True
        for end in list(self._open):
            end()
        self.world.disturb()

    def _until(self, f: Fault, end: Callable[[], object]) -> None:
        """`end` is called when the fault has ended."""

        def once() -> None:
            if once in self._open:
                self._open.remove(once)
                end()

        self._open.append(once)
        self.sim.at(f["for_s"], once)

    def _disturbed(self, f: Fault) -> None:
        """Restarts the oracles' bounds when this fault has ended."""
        self.world.disturb()
        self._until(f, self.world.disturb)

    def _pick(self, f: Fault, among: list[Any]) -> Any:
        return random.Random(f["seed"]).choice(among) if among else None

    def _walls(self, f: Fault, a: str, b: str) -> None:
        """Blocks messages from a to b, from b to a, or both ways."""
        pairs = {"out": [(a, b)], "in": [(b, a)], "both": [(a, b), (b, a)]}[f["way"]]
        self.world.net.walls.update(pairs)
        self._until(f, lambda: self.world.net.walls.difference_update(pairs))

    # ---- the control plane

    def do_plane_kill(self, f: Fault) -> None:
        self.world.disturb()
        self.world.plane.die("kill -9")

    def do_plane_crash(self, f: Fault) -> None:
        """Crashes between the handling, journaling and effects of some event soon."""
        self.world.disturb()
        plane = self.world.plane  # this one, also after a switch
        plane.crash_in = (f["where"], f["n"])

        def disarm() -> None:
            plane.crash_in = None
            self.world.disturb()

        self._until(f, disarm)

    def do_disk_full(self, f: Fault) -> None:
        self._disturbed(f)
        disk = self.world.plane.disk  # that of this machine, also after a switch
        disk.full = True
        self._until(f, lambda: setattr(disk, "full", False))

    def do_power(self, f: Fault) -> None:
        """The machine loses power: the journal's last write may be torn."""
        self.world.disturb()
        plane = self.world.plane
        journal = getattr(plane, "journal", None)
        if plane.up:
            plane.die("power")
            if hasattr(journal, "torn"):
                journal.torn()

    def do_journal_lost(self, f: Fault) -> None:
        """An operator moves the journal away, as JournalError advises."""
        self.world.disturb()
        self.world.plane.die("its journal is moved away")
        self.world.plane.lose_journal()
        self.world.oracles.forget_arrivals()

    def do_prune(self, f: Fault) -> None:
        plane = self.world.plane
        if plane.up and hasattr(plane.journal, "prune"):
            plane.act(lambda: plane.driver.call(lambda a, now_s: plane.journal.prune(a.durable, now_s, 1e9)))

    def do_keeper(self, f: Fault) -> None:
        """The journal's keeper makes a snapshot and drops earlier facts."""
        plane = self.world.plane
        if plane.lives and hasattr(plane.disk, "keep"):
            plane.disk.keep(plane.machine.time)
        else:
            self.do_prune(f)

    def do_failover(self, f: Fault) -> None:
        """RM and control plane are lost with their machine; others start, with an empty journal."""
        if self.world.rm is None:
            return
        self._disturbed(f)
        self.world.rm.stop()
        self.world.rm = None
        self.world.plane.die("its machine is lost")
        self.world.plane.lose_journal()
        self._until(f, self.world.start_rm)

    def do_switch(self, f: Fault) -> None:
        """The other ResourceManager takes over; the first one does not know it for a while, nor does its control plane.

        Both control planes run from then on, each with its own journal.
        """
        world, old = self.world, self.world.rm
        if old is None:
            return
        self._disturbed(f)

        def over() -> None:
            if not old.life.dead:
                old.stop()
                world.disturb()

        world.deposed.append(old)
        world.deposed_until_s = self.sim.now + 20.0 * f["amount"]
        self.sim.at(20.0 * f["amount"], over)
        world.rm, world.plane = None, world.other_plane()
        world.plane.start()
        self._until({**f, "for_s": 1.0 + f["for_s"] / 4}, lambda: world.rm or world.start_rm())

    def do_cells_apply(self, f: Fault) -> None:
        """The cells file is edited and applied while all continues: fewer tenants, other policies; and back."""
        world = self.world
        if not world.schedule["cells"] or len(world.owners) < 2:
            return
        before = list(world.schedule["vc_policies"])
        world.schedule["vc_policies"] = [self._pick(f, list(registry.names())), before[1]]
        taken = world.owners.pop() if f["amount"] < 0.6 else None
        self._post("cells-apply")

        def back() -> None:
            world.schedule["vc_policies"] = before
            if taken is not None:
                world.owners.append(taken)
            self._surely("cells-apply")

        self._until(f, back)

    def do_other_policy(self, f: Fault) -> None:
        """isonomy.yaml is changed, and the control plane started again."""
        self.world.disturb()
        self.world.policy_name = self._pick(f, list(registry.names()))
        self.world.plane.die("another policy")

    def do_cells_change(self, f: Fault) -> None:
        """A virtual cluster is taken out of the cells file, or put back."""
        if not self.world.schedule["cells"]:
            return
        self.world.disturb()
        owners = self.world.owners
        if len(owners) > 1:
            taken = owners.pop()
            self._until(f, lambda: owners.append(taken))
        self.world.plane.die("another cells file")

    def do_clock(self, f: Fault) -> None:
        """The control plane's machine has its clock stepped."""
        self.world.disturb()
        self.world.plane.machine.skew_s += (f["amount"] - 0.5) * 240

    # ---- the ResourceManager and the bridge

    def do_rm_restart(self, f: Fault) -> None:
        if self.world.rm is None:
            return
        self._disturbed(f)
        self.world.rm.stop()
        self.world.rm = None
        self._until(f, self.world.start_rm)

    def do_bridge_wall(self, f: Fault) -> None:
        self._disturbed(f)
        self._walls(f, "rm", self.world.plane.name)

    def do_bridge_loss(self, f: Fault) -> None:
        self._disturbed(f)
        name = self.world.plane.name
        for pair in (("rm", name), (name, "rm")):
            self.world.net.loss[pair] = 0.5 * f["amount"]
            self._until(f, lambda pair=pair: self.world.net.loss.pop(pair, None))

    def do_bridge_twice(self, f: Fault) -> None:
        self.world.net.duplication = 0.5 * f["amount"]
        self._until(f, lambda: setattr(self.world.net, "duplication", 0.0))

    def do_slow(self, f: Fault) -> None:
        party = self._pick(f, ["rm", self.world.plane.name, f["host"], f"am {self.world.app_id(f['app'])}"])
        self._disturbed(f)
        self.world.net.slow[party] = 5.0 * f["amount"]
        self._until(f, lambda: self.world.net.slow.pop(party, None))

    # ---- applications

    def _master(self, f: Fault) -> Any:
        master = self.world.masters.get(self.world.app_id(f["app"]))
        return None if master is None or master.life.dead else master

    def do_am_kill(self, f: Fault) -> None:
        master = self._master(f)
        if master is not None and self.world.rm is not None:
            master.die("kill -9")
            rm, app = self.world.rm, master.app
            self.sim.at(1.0, lambda: rm.attempt_failed(app), rm.life)
        elif master is not None:
            self.sim.at(1.0, lambda: self.do_am_kill(f))

    def do_agent_mute(self, f: Fault) -> None:
        """SIGSTOP of its Agent: its stream stays open."""
        master = self._master(f)
        if isinstance(master, AgentMaster):
            master.mute_until_s = self.sim.now + min(f["for_s"], MUTE_S)

    def do_agent_cut(self, f: Fault) -> None:
        master = self._master(f)
        if isinstance(master, AgentMaster) and master.stream is not None:
            master.stream.cut()

    def do_agent_wall(self, f: Fault) -> None:
        self._walls(f, f"am {self.world.app_id(f['app'])}", self.world.plane.name)

    def do_am_wall(self, f: Fault) -> None:
        self._walls(f, f"am {self.world.app_id(f['app'])}", "rm")

    def do_skew(self, f: Fault) -> None:
        self.world.skew[self.world.app_id(f["app"])] = (f["amount"] - 0.5) * 20

    def do_hdfs_away(self, f: Fault) -> None:
        self.world.hdfs.away = self.world.hdfs.unkept = True
        self._until(f, lambda: setattr(self.world.hdfs, "away", False))

    def do_yarn_kill(self, f: Fault) -> None:
        app = self.world.store.get(self.world.app_id(f["app"]))
        if app is not None and self.world.rm is not None:
            self.world.harmed.add(app.app_id)
            self.world.rm.finish(app, "KILLED")

    def do_move(self, f: Fault) -> None:
        app = self.world.store.get(self.world.app_id(f["app"]))
        if app is not None and not app.final and self.world.rm is not None:
            self.world.rm.move(app, self._pick(f, ["root.a", "root.b", "root.small"]))

    # ---- workers and machines

    def _worker(self, f: Fault) -> Any:
        return self._pick(f, [w for _, w in sorted(self.world.workers.items())])

    def do_worker_kill(self, f: Fault) -> None:
        worker = self._worker(f)
        if worker is not None:
            self.world.nms[worker.host].exited(worker.run, 137)

    def do_worker_cut(self, f: Fault) -> None:
        worker = self._worker(f)
        if worker is not None and worker.stream is not None:
            worker.stream.cut()

    def do_worker_deaf(self, f: Fault) -> None:
        worker = self._worker(f)
        if worker is not None:
            self._walls(f, worker.name, self.world.plane.name)

    def do_nm_down(self, f: Fault) -> None:
        self._node_down(f, False)

    def do_machine_down(self, f: Fault) -> None:
        self._node_down(f, True)

    def _node_down(self, f: Fault, machine: bool) -> None:
        nm = self.world.nms[f["host"]]
        if nm.up:
            self._disturbed(f)
            nm.crash(machine)
            self._until(f, nm.start)

    def do_nm_at_kill(self, f: Fault) -> None:
        """The next NodeManager that is told to kill a container is itself killed before it receives the order."""
        self.world.rm_crashes_nm = lambda nm: self._node_down({**f, "host": nm.host}, False)
        self._until({**f, "for_s": 30.0}, lambda: setattr(self.world, "rm_crashes_nm", None))

    def do_kill_fails(self, f: Fault) -> None:
        """The ResourceManager refuses the next kill or two, as while it does not know the container yet."""
        self.world.kills_refused = 1 + f["n"] % 2
        self._until({**f, "for_s": 60.0}, lambda: setattr(self.world, "kills_refused", 0))

    def do_nm_wall(self, f: Fault) -> None:
        self._disturbed(f)
        self._walls(f, f["host"], "rm")

    def do_refuses(self, f: Fault) -> None:
        """Other processes use up the machine's memory, for a while or permanently."""
        nm = self.world.nms[f["host"]]
        if sum(n.refuses for n in self.world.nms.values()) == 0:
            nm.refuses = True
            if f["amount"] < 0.5:
                self._until(f, lambda: setattr(nm, "refuses", False))

    def do_decommission(self, f: Fault) -> None:
        if self.world.rm is not None:
            node_id = self.world.nms[f["host"]].node_id
            self.world.rm.decommission(node_id, True)
            self._until(f, lambda: self.world.rm and self.world.rm.decommission(node_id, False))

    def do_label(self, f: Fault) -> None:
        """The machine is put into a partition that no queue uses."""
        nm = self.world.nms[f["host"]]
        nm.partition = "gold"
        self._tell(nm)

        def back() -> None:
            nm.partition = ""
            self._tell(nm)

        self._until(f, back)

    def do_blacklist(self, f: Fault) -> None:
        """An AM blacklists a machine; it may remove it from the blacklist again."""
        pair = (self.world.app_id(f["app"]), f["host"])
        self.world.blacklist.add(pair)
        if f["amount"] < 0.5:
            self._until(f, lambda: self.world.blacklist.discard(pair))

    def do_user_limit(self, f: Fault) -> None:
        """Ann's memory limit leaves room for only a container or two."""
        self.world.user_max["ann"] = 1 + int(3 * f["amount"])
        self._until(f, lambda: self.world.user_max.pop("ann", None))

    def do_resize(self, f: Fault) -> None:
        """`yarn rmadmin -updateNodeResource`."""
        nm = self.world.nms[f["host"]]
        if any(nm.gpus != n for h, _, n in NODES if h == nm.host):
            return
        whole = nm.gpus
        nm.gpus = max(1, nm.gpus - 1 - int(2 * f["amount"]))
        self._tell(nm)

        def back() -> None:
            nm.gpus = whole
            self._tell(nm)

        self._until(f, back)

    def do_bad_gpus(self, f: Fault) -> None:
        nm = self.world.nms[f["host"]]
        nm.attributes["rm.yarn.io/bad-gpus"] = self._pick(f, ["0", "1", "0_1", "all", "rubbish"])
        self._tell(nm)

        def back() -> None:
            nm.attributes.clear()
            self._tell(nm)

        self._until(f, back)

    def _tell(self, nm: Any) -> None:
        if self.world.rm is not None:
            self.world.rm.changed(nm.node_id)

    # ---- people

    def _post(self, path: str, **params: str) -> None:
        self.world.plane.query("POST", path, params, "root", True)

    def trade(self) -> None:
        """Each queue offers a cell to the other one, and asks it for one, for half a minute."""
        for vc in ("root.a", "root.b"):
            self._post("exchange-offer", vc=vc, cells="small:1", for_s="30")
            self._post("exchange-request", vc=vc, cells="small:1", for_s="20")

    def do_drain(self, f: Fault) -> None:
        self._post("drain", node=f["host"])
        self._until(f, lambda: self._surely("undrain", node=f["host"]))

    def undrain(self, host: str) -> None:
        """Makes sure that the machine is in use again."""
        self._surely("undrain", node=host)

    def do_pause(self, f: Fault) -> None:
        self._post("pause")
        self._until(f, lambda: self._surely("resume"))

    def do_limit(self, f: Fault) -> None:
        """A user or a queue may have few GPUs, or uses its budget up; a limit that lets each gang run may stay."""
        account = f"user {('ann', 'bob')[f['app'] % 2]}" if f["n"] % 3 else "queue root"
        most = {"gpus": str(f["n"])} if f["n"] % 2 else {"gpu_hours_month": f"{f['amount'] / 50:.4f}"}
        self._post("budget-set", account=account, **most)
        if not f["n"] % 2 or f["n"] < 7:
            self._until(f, lambda: self._surely("budget-set", account=account, gpus="none", gpu_hours_month="none"))

    def _surely(self, path: str, **params: str) -> None:
        """Repeats a command until the control plane and the ResourceManager in front of it are reachable."""
        plane = self.world.plane
        there = self.world.rm is not None and plane.up and plane.endpoint.connected
        found = plane.query("POST", path, params, "root", True) if there else {}
        self.world.disturb()
        if found.get("status") != 200:
            self.sim.at(1.0, lambda: self._surely(path, **params))

    def do_kill_app(self, f: Fault) -> None:
        app_id = self.world.app_id(f["app"])
        self.world.harmed.add(app_id)
        self._post("kill", app=app_id)
        self.sim.at(10.0, lambda: self.do_yarn_kill(f))  # of an app without an Agent only the asks are void

    def do_rest(self, f: Fault) -> None:
        rest(self.world, f)

    # ---- adversaries

    def do_liar(self, f: Fault) -> None:
        liar = Liar(self.world, f)
        self._until(f, liar.stop)

    def do_mallory(self, f: Fault) -> None:
        mallory(self.world, f)

    def do_flood(self, f: Fault) -> None:
        flood(self.world, f, lambda: self.healed)
