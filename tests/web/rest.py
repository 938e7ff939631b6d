"""`python -m tests.web.rest`: writes docs/rest.json, a JSON Schema of each REST answer, and docs/rest.md from it.

The schemas are those of real answers of simulated clusters; test_rest.py holds the answers of others against them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pycontrol.bridge.endpoint import to_json
from pycontrol.policies import registry
from tests.web.stage import Stage, add_troubles, busy, router_of

DOCS = Path(__file__).parents[2] / "docs"
Schema = dict[str, Any]
PATHS = {
    "status": "the cluster, its GPUs and queues, the policy, what is paused or drained",
    "queue": "the apps in the system, with why each waits and when it is expected to start and end",
    "apps": "apps with their jobs, also some that ended",
    "leases": "GPUs with their leases and reservations",
    "explain": "why one app has what it has (`app`: id or name)",
    "rounds": "the newest rounds' receipts, newest first (`n`: how many)",
    "spans": "one app's recent leases, and what was taken back from it (`app`)",
    "trends": "samples of the last hours (`hours`, `app`)",
    "events": "facts since a number, a long poll (`since`, `wait_s`, `limit`)",
    "logs": "where an app's containers' logs are (`app`)",
}
INTRODUCTION = """# REST

Generated from real answers (`python -m tests.web.rest`), as the JSON Schemas of [rest.json](rest.json) are; a test
holds
other answers against them, so no field goes or changes its type unseen. All paths are below
`http://RM:8088/ws/v1/cluster/isonomy/`; `isonomy VERB -o json` prints the same objects. Times are Unix seconds (`_s`);
`[]` is each element of a list, `.*` each value of an object whose keys are data. What changes something is POST and
needs
an admin ([security.md](security.md)). An error is `{"error": why}` with its status."""
DYNAMIC = re.compile(r"[0-9:./]|^$")
"""A key with one of these is data (a host, an id, a queue), not a field."""
BY_NAME = frozenset({"by_queue", "by_user", "configuration", "options", "gpu_types", "speedups", "memory"})
"""Objects whose keys are names that somebody chose."""


def schema_of(value: Any, name: str = "") -> Schema:
    """The JSON Schema of one value."""
    if isinstance(value, dict):
        if value and (name in BY_NAME or all(DYNAMIC.search(k) for k in value)):
            return {"type": ["object"], "additionalProperties": merged(schema_of(v) for v in value.values())}
        fields = {k: schema_of(v, k) for k, v in sorted(value.items())}
        return {"type": ["object"], "properties": fields, "required": sorted(fields)}
    if isinstance(value, list):
        return {"type": ["array"], "items": merged(schema_of(v) for v in value)}
    kinds = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}
    return {"type": [kinds[type(value)]]}


def merged(schemas: Iterable[Schema]) -> Schema:
    """What admits all of them."""
    found: Schema = {}
    for schema in schemas:
        found = _both(found, schema) if found else schema
    return found


def _both(a: Schema, b: Schema) -> Schema:
    if not a or not b:
        return a or b
    both: Schema = {"type": sorted({*a["type"], *b["type"]})}
    if "items" in a or "items" in b:
        both["items"] = _both(a.get("items", {}), b.get("items", {}))
    maps = [s["additionalProperties"] for s in (a, b) if "additionalProperties" in s]
    objects = [s for s in (a, b) if "properties" in s]
    if maps:  # an empty object fits a map, too
        both["additionalProperties"] = merged([*maps, *(f for o in objects for f in o["properties"].values())])
    elif objects:
        names = sorted({k for o in objects for k in o["properties"]})
        both["properties"] = {k: merged(o["properties"][k] for o in objects if k in o["properties"]) for k in names}
        both["required"] = sorted(set.intersection(*(set(o["required"]) for o in objects)))
    return both


def misfits(value: Any, schema: Schema, at: str = "") -> list[str]:
    """Where a value is not what the schema says; an unknown field is a misfit."""
    if not schema:
        return []
    kind = schema_of(value)["type"][0]
    if kind not in schema["type"]:
        return [f"{at}: {kind}, not {' or '.join(schema['type'])}"]
    if kind == "array":
        return [m for v in value for m in misfits(v, schema.get("items", {}), f"{at}[]")]
    if kind != "object":
        return []
    if "additionalProperties" in schema:
        return [m for v in value.values() for m in misfits(v, schema["additionalProperties"], f"{at}.*")]
    fields = schema.get("properties", {})
    missing = [f"{at}.{k}: is missing" for k in schema.get("required", []) if k not in value]
    unknown = [f"{at}.{k}: is not documented" for k in value if k not in fields]
    inner = [m for k, v in value.items() if k in fields for m in misfits(v, fields[k], f"{at}.{k}")]
    return [*missing, *unknown, *inner]


def answers(stage: Stage) -> dict[str, list[Any]]:
    """What each path answers, for several apps where it takes one."""
    router = router_of(stage)
    apps = [a["app_id"] for a in router.handle("GET", "queue", {}, "ann", False)[1]["apps"]][:8]
    found: dict[str, list[Any]] = {}
    for path in PATHS:
        of_app = path in ("explain", "spans", "logs")
        for params in [{"app": app} for app in apps] if of_app else [{"since": "0"} if path == "events" else {}]:
            status, answer = router.handle("GET", path, params, "ann", False)
            assert status == 200, (path, params, answer)
            found.setdefault(path, []).append(json.loads(to_json(answer)))
    return found


def stages() -> list[Stage]:
    """Clusters whose answers are documented."""
    made = [
        busy(registry.make(policy), apps=25, hours=4, seed=seed) for policy, seed in (("isonomy", 3), ("themis", 5))
    ]
    add_troubles(made[0])
    made[0].run_until(made[0].now + 70)
    return made


def document() -> dict[str, Schema]:
    """The schema of each path."""
    found: dict[str, list[Any]] = {}
    for stage in stages():
        for path, some in answers(stage).items():
            found.setdefault(path, []).extend(some)
    return {path: merged(schema_of(a) for a in some) for path, some in found.items()}


def _rows(schema: Schema, at: str = "") -> Iterable[str]:
    for name, field in schema.get("properties", {}).items():
        where = f"{at}.{name}" if at else name
        while True:
            kinds = " or ".join(field.get("type", ["any"]))
            if "items" in field:
                where, field = f"{where}[]", field["items"] or {"type": ["any"]}
            elif "additionalProperties" in field:
                where, field = f"{where}.*", field["additionalProperties"] or {"type": ["any"]}
            else:
                break
        if field.get("properties"):
            yield from _rows(field, where)
        else:
            yield f"| `{where}` | {kinds} | {'' if name in schema.get('required', []) else 'not always'} |"


def page(schemas: dict[str, Schema]) -> str:
    """docs/rest.md."""
    lines = [*INTRODUCTION.splitlines(), ""]
    for path, text in PATHS.items():
        lines += [f"## {path}", "", text[0].upper() + text[1:] + ".", "", "| field | type | |", "| --- | --- | --- |"]
        lines += [*_rows(schemas[path]), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Writes both files."""
    schemas = document()
    (DOCS / "rest.json").write_text(json.dumps(schemas, indent=1) + "\n", encoding="utf-8")
    (DOCS / "rest.md").write_text(page(schemas), encoding="utf-8")


if __name__ == "__main__":
    main()
