"""Reads YAML files strictly, with one line per mistake that says what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from pycontrol.configerror import ConfigError
from pycontrol.model.bounds import OutOfBounds, numbers_within
from pycontrol.words import suggest

NamedPath = Annotated[Path, BeforeValidator(lambda x: Path(x).expanduser() if isinstance(x, str) else x)]
FilePath = Annotated[NamedPath, AfterValidator(lambda path, info: (info.context or Path()) / path)]
"""Relative to the file that names it."""
Host = Annotated[str, Field(min_length=1, pattern=r"^\S+$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: no unknown keys, no type coercion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    former: ClassVar[Mapping[str, tuple[object, str]]] = {}
    """Key of an earlier version -> the value that is ignored, as it changes nothing, and what to say of others."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k not in cls.former or cls.former[k][0] != v}

    @model_validator(mode="after")
    def _numbers_within_bounds(self) -> Self:
        numbers_within(dict(self))
        return self


S = TypeVar("S", bound=Section)


def read(file: Path, model: type[S]) -> S:
    """Read a YAML file as `model`; raises ConfigError with all mistakes."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text"]) from error
    return parse(text, model, file.name, file.resolve().parent)


def parse(text: str, model: type[S], name: str, folder: Path | None = None) -> S:
    """Parse YAML text as `model`; raises ConfigError, whose lines begin with the file's `name`. It is in `folder`."""
    try:
        return model.model_validate(mapping(text, name), context=folder)
    except ValidationError as error:
        mistakes = (e for e in error.errors() if e["type"] != "default_factory_not_called")
        raise ConfigError([f"{name}: {_line(e, model)}" for e in mistakes]) from error


class OnceEach(yaml.SafeLoader):
    """Refuses a key that a mapping has twice; of merge keys (<<), which are resolved later, it may replace some."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """PyYAML takes the last of equal keys without a word."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[object, yaml.Node] = {}
        for key, _ in node.value:
            if seen.setdefault((key.tag, str(key.value)), key) is not key:
                raise yaml.MarkedYAMLError(None, None, f"{key.value} is there twice; join them", key.start_mark)
        return node


def mapping(text: str, name: str) -> dict[Any, Any]:
    """YAML text as a mapping, empty for an empty text; raises ConfigError with `name` in its line."""
    try:
        data = yaml.load(text, OnceEach)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise ConfigError([f"{name}:{where} is not YAML: {problem}"]) from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError([f"{name}: must be a mapping of keys to values (got {type(data).__name__})"])
    return data


def _line(error: ErrorDetails, model: type[Section]) -> str:
    """A pydantic error as one line: `lease_s: must be > 0 (got -1)`."""
    key = _key(error["loc"])
    context = error.get("ctx", {})
    got = f" (got {_shown(error['input'])})"
    match error["type"]:
        case "extra_forbidden":
            return f"{key}: {_unknown(error['loc'], model)}"
        case "missing":
            return f"{key}: is missing; add it"
        case "value_error":
            where = f"{key}." if error["loc"] and isinstance(context["error"], OutOfBounds) else ""
            return f"{where}{context['error']}"
        case "greater_than":
            return f"{key}: must be > {context['gt']:g}{got}"
        case "greater_than_equal":
            return f"{key}: must be >= {context['ge']:g}{got}"
        case "less_than_equal":
            return f"{key}: must be <= {context['le']:g}{got}"
        case "finite_number":
            return f"{key}: must be a finite number{got}"
        case "literal_error":
            return f"{key}: must be {context['expected']}{got}"
        case "is_instance_of":
            return f"{key}: must be a path{got}"
        case "string_pattern_mismatch":
            return f"{key}: must look like {_LIKE.get(context['pattern'], context['pattern'])}{got}"
        case kind if kind.endswith(("_type", "_parsing")):
            return f"{key}: must be {_KINDS.get(kind.rsplit('_', 1)[0], 'of another type')}{got}"
    return f"{key}: {error['msg'][:1].lower()}{error['msg'][1:]}{got}"


_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "model": "a mapping of keys to values",
}
_LIKE = {
    r"^[^\s,]+:\d{1,5}(,[^\s,]+:\d{1,5})*$": "host:port",
    r"^https?://\S+$": "http://host:port",
    r"^\S+$": "a host name",
    r"^[^\s/]+$": "a name without blanks and slashes",
}


def _key(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key or "file"


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown(location: tuple[int | str, ...], model: type[Section]) -> str:
    """`unknown key, did you mean lease_s?`, or the known keys of the section; of a former key what to write."""
    known: Iterable[str] = model.model_fields
    named = False
    for part in location[:-1]:
        if isinstance(part, str) and not named:
            field = model.model_fields.get(part)
            inner = _section_of(field.annotation) if field is not None else None
            if field is None or inner is None:
                return "unknown key"
            model, known, named = inner, inner.model_fields, get_origin(field.annotation) is Mapping
        else:
            named = False
    if location[-1] in model.former:
        return model.former[str(location[-1])][1]
    return f"unknown key, {suggest(location[-1], known)}"


def _section_of(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((s for a in get_args(annotation) if (s := _section_of(a))), None)
