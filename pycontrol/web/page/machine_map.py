"""The map of the machines: GPU by GPU, or with many of them rack by rack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycontrol.model.grouping import grouped, summed
from pycontrol.queries.lookup import Refusal
from pycontrol.web.page import Read, Row, drawing, text
from pycontrol.words import count

GPUS_DRAWN = 1024
"""With more GPUs, racks are drawn as bars; a rack's hosts where it is asked for."""
NAMED = 12
"""Apps of a rack that its tooltip names."""


@dataclass(frozen=True)
class Drawer:
    """What all parts of the map need."""

    colour: Mapping[str, int]
    """By app."""
    names: Mapping[str, str]
    now_s: float

    def map(self, read: Read, status: Row, rack: str) -> dict[str, Any]:
        """All racks, or one."""
        racks = grouped((node["rack"] or "no rack", node) for node in status["nodes"])
        if rack:
            if rack not in racks:
                raise Refusal(404, f"there is no rack {rack}")
            racks = {rack: racks[rack]}
        gpus = sum(node["gpus"] or 0 for nodes in racks.values() for node in nodes)
        if gpus > GPUS_DRAWN:
            drawn = [self._rack(name, nodes) for name, nodes in sorted(racks.items())]
            return {"racks": drawn, "collapsed": True, "rack": rack}
        leases: dict[str, dict[str, Row]] = {}
        for lease in read("leases", {})["leases"]:
            leases.setdefault(lease["gpu"], {})["next" if lease["state"] == "next" else "now"] = lease
        drawn = [
            {"name": name, "hosts": [self._host(node, leases) for node in nodes]}
            for name, nodes in sorted(racks.items())
        ]
        return {"racks": drawn, "collapsed": False, "rack": rack}

    def _rack(self, name: str, nodes: list[Row]) -> dict[str, Any]:
        """A rack in one bar: its GPUs by app, the largest first, then the others."""
        held: dict[str, int] = summed(item for node in nodes for item in node["apps"].items())
        up = [node for node in nodes if node["state"] != "down"]
        gpus = {
            "gpus": sum(node["gpus"] or 0 for node in nodes),
            "free": sum(node["free"] for node in up),
            "unleased_in_use": sum(len(node["unleased_gpus"]) for node in up),
            "bad": sum(len(node["bad_gpus"]) for node in up),
            **{s: sum(n["gpus"] - n["leased"] for n in up if n["state"] == s) for s in ("drained", "closed")},
            "down": sum(node["gpus"] or 0 for node in nodes if node["state"] == "down"),
        }
        apps = sorted(held.items(), key=lambda item: (-item[1], item[0]))
        parts: list[tuple[str, int]] = [(f"c{self.colour.get(app_id, 0)}", n) for app_id, n in apps]
        parts += [(s, gpus[s]) for s in ("free", "unleased_in_use", "drained", "closed", "bad", "down")]
        who = ", ".join(f"{self.names.get(app_id, app_id)} {n}" for app_id, n in apps[:NAMED])
        if len(apps) > NAMED:
            who += f" and {count(len(apps) - NAMED, 'other app')}"
        return {
            "name": name,
            "hosts": len(nodes),
            "parts": drawing.stacked(parts, max(1, gpus["gpus"])),
            "who": who,
            **gpus,
        }

    def _host(self, node: Row, leases: Mapping[str, Mapping[str, Row]]) -> dict[str, Any]:
        gpus = [self._gpu(node, i, leases.get(f"{node['host']}:{i}", {})) for i in range(node["gpus"] or 0)]
        words = [node["state"]] if node["state"] != "up" else []
        note = ": ".join([*words, *filter(None, [node["reason"]])])
        label = f"{count(len(gpus), 'GPU')}: {node['leased']} leased, {node['free']} free"
        known = {"host": node["host"], "type": node["gpu_type"], "state": node["state"]}
        return {**known, "note": note, "label": label, "gpus": gpus}

    def _gpu(self, node: Row, index: int, leases: Mapping[str, Row]) -> dict[str, str]:
        """Classes and words of one GPU."""
        now, following = leases.get("now"), leases.get("next")
        what = [f"{node['host']}:{index}"]
        if node["state"] == "down":
            kinds = ["down"]
        elif index in node["bad_gpus"]:
            kinds = ["bad"]
        elif now is None:
            idle = "unleased" if index in node["unleased_gpus"] else "free"
            kinds = [idle if node["state"] == "up" else node["state"]]
        else:
            kinds = [f"c{self.colour.get(now['app_id'], 0)}"]
            kinds += ["revoking"] if now["state"] == "revoking" else []
            kinds += [] if now["guaranteed"] else ["lent"]
        if now is None:
            what.append("used without a lease" if kinds == ["unleased"] else kinds[0])
        else:
            ends = f"ends {text.until(now['end_s'], self.now_s)}"
            ends = f"being revoked: {now['reason']}" if now["state"] == "revoking" else ends
            what += [self._name(now), f"job {now['job_id']}" if now["job_id"] else "no job yet", ends]
            what += [] if now["guaranteed"] else ["borrowed"]
        if following is not None:
            kinds.append(f"next n{self.colour.get(following['app_id'], 0)}")
            what.append(f"next: {self._name(following)}")
        return {"kinds": " ".join(kinds), "what": ", ".join(what)}

    def _name(self, lease: Row) -> str:
        return self.names.get(lease["app_id"], lease["app_id"])
