"""JSON Schemas of plain values, made from examples, and a check of values against them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pycontrol.policies import registry

Schema = dict[str, Any]
DYNAMIC = re.compile(r"[0-9:./-]|^$")
"""A key with one of these is data (a host, an id, a queue), not a field; so are the names of policies."""
BY_NAME = frozenset(
    {
        "by_queue",
        "by_user",
        "configuration",
        "options",
        "gpu_types",
        "speedups",
        "memory",
        "cell_types",
        "virtual_clusters",
        "policies",
        "gpu_h_lost_by",
    }
)
"""Objects whose keys are user-chosen names."""
OPAQUE = frozenset({"durable", "settings"})
"""Objects that are not meant for clients."""


def schema_of(value: Any, name: str = "") -> Schema:
    """The JSON Schema of one value."""
    if isinstance(value, dict):
        if name in OPAQUE or not value:
            return {"type": ["object"]}
        if _are_data(value, name):
            return {"type": ["object"], "additionalProperties": merged(schema_of(v) for v in value.values())}
        fields = {k: schema_of(v, k) for k, v in sorted(value.items())}
        return {"type": ["object"], "properties": fields, "required": sorted(fields)}
    if isinstance(value, list):
        return {"type": ["array"], "items": merged(schema_of(v) for v in value)}
    kinds = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}
    return {"type": [kinds[type(value)]]}


def _are_data(keys: Iterable[str], name: str) -> bool:
    """Whether these keys of an object of that name are data, not fields."""
    keys = list(keys)
    return name in BY_NAME or all(DYNAMIC.search(k) for k in keys) or set(keys) <= set(registry.names())


def merged(schemas: Iterable[Schema]) -> Schema:
    """The schema that admits all of them."""
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
        empty = any("object" in s["type"] and s not in objects for s in (a, b))
        both["required"] = [] if empty else sorted(set.intersection(*(set(o["required"]) for o in objects)))
    return both


def misfits(value: Any, schema: Schema, at: str = "") -> list[str]:
    """The places where a value does not fit the schema; an unknown field is a misfit."""
    if not schema:
        return []
    kind = schema_of(value)["type"][0]
    if schema["type"] == ["null"]:
        return []  # no other value was seen
    if kind not in schema["type"]:
        return [f"{at}: {kind}, not {' or '.join(schema['type'])}"]
    if kind == "array":
        return [m for v in value for m in misfits(v, schema.get("items", {}), f"{at}[]")]
    if kind != "object":
        return []
    if "properties" not in schema and "additionalProperties" not in schema:
        return []  # only empty ones were seen, or clients should not rely on its content
    if "additionalProperties" in schema:
        return [m for v in value.values() for m in misfits(v, schema["additionalProperties"], f"{at}.*")]
    fields = schema.get("properties", {})
    missing = [f"{at}.{k}: is missing" for k in schema.get("required", []) if k not in value]
    unknown = [f"{at}.{k}: is not documented" for k in value if k not in fields]
    inner = [m for k, v in value.items() if k in fields for m in misfits(v, fields[k], f"{at}.{k}")]
    return [*missing, *unknown, *inner]


def described(schema: Schema, at: str = "") -> Iterable[str]:
    """Table rows of a schema's fields."""
    for name, field in schema.get("properties", {}).items():
        where = f"{at}.{name}" if at else name
        while True:
            kinds = " or ".join(field.get("type", ["any"])).replace(
                "null", "any" if field["type"] == ["null"] else "null"
            )
            if "items" in field:
                where, field = f"{where}[]", field["items"] or {"type": ["any"]}
            elif "additionalProperties" in field:
                where, field = f"{where}.*", field["additionalProperties"] or {"type": ["any"]}
            else:
                break
        if field.get("properties"):
            yield from described(field, where)
        else:
            yield f"| `{where}` | {kinds} | {'' if name in schema.get('required', []) else 'not always'} |"
