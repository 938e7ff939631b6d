"""The cases for `isonomy replay`, validated field by field."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pycontrol.lab.solve.shares import SharesCase

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Slowdown = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class CaseError(Exception):
    """A case is invalid; the message names the field."""


class _CaseModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class CurrentPhase(_CaseModel):
    """The phase that an app is in."""

    serial_iter_times: Annotated[list[Positive], Field(min_length=1)]
    iterations_left: NotNegative


class HalvingCase(_CaseModel):
    """rho of successive halving."""

    R_C: Count
    N_avg: Positive
    B: Positive
    app_demand_max: Count
    job_demand_max: Count
    S: Slowdown
    elapsed: NotNegative
    current_phase: CurrentPhase
    future_phases: list[Annotated[list[NotNegative], Field(min_length=2, max_length=2)]]
    points: list[Count]

    @field_validator("future_phases")
    @classmethod
    def _whole_jobs(cls, phases: list[list[float]]) -> list[list[float]]:
        if any(jobs < 1 or not float(jobs).is_integer() or jobs > 1 << 20 for jobs, _ in phases):
            raise ValueError("each must be [number of jobs, iterations]")
        return phases


class WatchedJob(_CaseModel):
    """A job with observed losses, as [step, loss] in order of steps."""

    serial_iter_time: Positive
    S: Slowdown = 1.0
    seen: list[Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=2, max_length=2)]]

    @field_validator("seen")
    @classmethod
    def _rising(cls, seen: list[list[float]]) -> list[list[float]]:
        steps = [step for step, _ in seen]
        if any(step <= 0 for step in steps) or any(b <= a for a, b in pairwise(steps)):
            raise ValueError("steps must rise from above 0")
        return seen


class CurveCase(_CaseModel):
    """rho of performance-curve stopping."""

    R_C: Count
    N_avg: Positive
    B: Positive
    app_demand_max: Count
    job_demand_max: Count
    elapsed: NotNegative
    iter_total: Positive
    target: float | None = None
    jobs: Annotated[list[WatchedJob], Field(min_length=1)]
    points: list[Count]


class CountInterval(_CaseModel):
    """An interval with a constant number of apps."""

    start: float
    end: float
    count: Count


class SingleCase(_CaseModel):
    """rho of a single job."""

    R_C: Count
    job_demand_max: Count
    serial_iter_time: Positive
    iter_total: Positive
    iter_left: NotNegative
    T_start: float
    T_current: float
    apps_in_system: Annotated[list[CountInterval], Field(min_length=1)]
    points: list[Annotated[list[Annotated[int | float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=2)]]

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.T_current < self.T_start:
            raise ValueError("T_current is before T_start")
        if any(len(p) != 2 or p[0] < 1 or p[0] != int(p[0]) or p[1] < 1 for p in self.points):
            raise ValueError("points: each must be [GPUs, S >= 1]")
        ends = [self.T_start, *(span.end for span in self.apps_in_system)]
        if any(span.start != before for span, before in zip(self.apps_in_system, ends, strict=False)):
            raise ValueError("apps_in_system: the spans must follow each other from T_start on")
        if ends[-1] < self.T_current or any(span.end < span.start for span in self.apps_in_system):
            raise ValueError("apps_in_system: the spans must reach T_current")
        return self


class AuctionCase(_CaseModel):
    """One auction over explicit tables."""

    machines: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    rho_tables: list[dict[str, Positive]]

    @model_validator(mode="after")
    def _keys(self) -> Self:
        for i, table in enumerate(self.rho_tables):
            for key in table:
                parts = key.split(",")
                if len(parts) != len(self.machines) or not all(p.isascii() and p.isdigit() for p in parts):
                    raise ValueError(f"rho_tables.{i}: {key!r} must be GPUs on each of {len(self.machines)} machines")
            if not any(set(row) == {0} for row in map(parse_key, table)):
                raise ValueError(f"rho_tables.{i}: has no all-zero row, the rho without the offer")
        return self


class CellsCase(_CaseModel):
    """A cluster of cells, and steps that change it."""

    id: str | None = None
    cluster: dict[str, Any]
    steps: list[dict[str, Any]]

    @field_validator("steps")
    @classmethod
    def _known(cls, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for at, step in enumerate(steps):
            for key in ("step", "op", "kind"):
                if key not in step:
                    raise ValueError(f"steps.{at}.{key}: is missing")
        return steps


def parse_key(key: str) -> tuple[int, ...]:
    """GPUs by machine from "2,0,1"."""
    return tuple(int(part) for part in key.split(","))


MODELS: dict[str, type[BaseModel]] = {
    "rho successive_halving": HalvingCase,
    "rho single_job": SingleCase,
    "rho performance_curve": CurveCase,
    "auction": AuctionCase,
    "shares": SharesCase,
    "cells": CellsCase,
}
Kind = Literal["rho", "auction", "shares", "cells"]
KINDS: tuple[Kind, ...] = ("rho", "auction", "shares", "cells")


def parse_case(case: Any) -> tuple[Kind, str | None, BaseModel]:
    """(kind, id, validated input) of one case; raises CaseError."""
    if not isinstance(case, dict):
        raise CaseError("a case must be an object")
    kind = case.get("kind")
    if kind is None:
        raise CaseError("kind: is missing")
    if kind not in KINDS:
        raise CaseError(f"kind {kind} is not supported, only {' and '.join(KINDS)}")
    name = kind
    if kind == "rho":
        if "model" not in case:
            raise CaseError("model: is missing")
        name = f"rho {case['model']}"
        if name not in MODELS:
            raise CaseError(
                f"model: {case['model']!r} is not one of {', '.join(m[4:] for m in MODELS if m.startswith('rho '))}"
            )
    try:
        return kind, case.get("id"), MODELS[name].model_validate(case)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise CaseError(f"{where}: {what}" if where else what) from e
