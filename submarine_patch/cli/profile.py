"""`--profile FILE [--model NAME]`: what a file says of a model's speed, as the options that say it."""

from __future__ import annotations

from pathlib import Path

from pycontrol.fairness.profiles import ProfileError, load_profile
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.options import RunArguments, add_conf


def use_profile(parsed: RunArguments) -> None:
    """Puts the profile's serial time and slowdown in, where the user did not give them as well."""
    file, model = parsed.conf.pop("profile", ""), parsed.conf.pop("model", "")
    if not file:
        if model:
            raise UsageError("isonomy.model: needs --profile FILE")
        return
    if not (model or parsed.name):
        raise UsageError("isonomy.profile: needs --model NAME (or --name)")
    try:
        profile = load_profile(Path(file), model or parsed.name or "")
    except ProfileError as error:
        raise UsageError(f"isonomy.profile: {error}") from error
    if profile.iteration_s is not None and "iteration_s" not in parsed.conf:
        add_conf(parsed, "iteration_s", f"{profile.iteration_s:.9g}")
    if "slowdown" not in parsed.conf:
        add_conf(parsed, "slowdown", ",".join(f"{s:.9g}" for s in profile.slowdown))
