"""The options of `submarine job run`: the stock ones, passed through, and friendly ones for groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from submarine_patch.cli.errors import UsageError

PREFIX = "isonomy."


@dataclass(frozen=True, slots=True)
class Option:
    """An option as help shows it; `metavar` is empty for a flag."""

    name: str
    metavar: str
    help: str


def _options(table: str) -> tuple[Option, ...]:
    """The options of a table: name, metavar (- for a flag) and help, which goes on in indented lines."""
    rows = (row.split(maxsplit=2) for row in re.sub(r"\n +", " ", table).splitlines())
    return tuple(Option(name, metavar.strip("-"), text) for name, metavar, text in rows)


GROUP_OPTIONS = _options("""\
app-scheduler NAME single (default); hyperband, successive_halving or asha (the same without barriers): the best
  continue; median or curve: all train, those that cannot win are stopped; optuna: each learns from those before
search-space FILE YAML file, for example parameters: {lr: {type: float, min: 0.001, max: 0.1, log: true}, batch: {type:
  choice, values: [32, 64]}, layers: {type: int, min: 1, max: 3}}
gpus-per-job N|MIN:MAX GPUs of one job, on one machine or several; default: workers x gpu; 1:8: any number in this range
hours H hours that one job trains on its GPUs (up to --max-iterations, if given), roughly: the declared work, by which
  the default policy orders apps
epochs N epochs that one job trains, if neither its log nor a session says how many: once one was timed, its end is
  known; with --hours they take so long
max-iterations N the most iterations of one job
min-iterations N iterations after which jobs are compared first; default 1, with median and curve a tenth of
  --max-iterations
eta N one of N jobs continues to the next rung; default 3
jobs N configurations to try; default: as many as the rungs have; 20 with median, curve, optuna
budget N iterations of all jobs together
metric NAME the metric that is compared: accuracy (default), loss, or any value that the training reports
mode min|max whether a smaller or a larger value is better; default: min for loss, val_loss ..., else max
keep-folder FOLDER a script's own checkpoints: kept on HDFS from one launch to the next
unsaved true|false whether the script writes no checkpoints; default: a guess from its text
target VALUE value of the metric: with curve, the search ends once a job reaches it
sampler NAME with optuna: tpe (default), random or gp (needs PyTorch)
parallel N with optuna: jobs at once; default 4
seed N seed of all random choices; default 0
max-retries N how often a failed worker is restarted; default 3; never after two equal failures at once
iteration-s SECONDS serial GPU-seconds of one iteration, if you know them
slowdown S,S,S slowdown on one machine, in one rack, across racks; default 1.0,1.1,1.3
speedups TYPE=N,... speeds of GPU types relative to the slowest, for example K80=1,V100=3.2
job-type NAME under which measured speedups are kept for later apps; default: the launch command
trial-steps N iterations to try on each GPU type not yet known of the job type; default 0: none
gpu-bound SHARE the part of --iteration-s that a faster GPU shortens; on virtual GPUs only; default 1
notify URL URL that is sent JSON when the job starts, hangs, loses GPUs, ends or fails
priority N YARN's priority of the application: higher ones come first in their queue's own cells
within machine|socket|switch|rack|cluster all GPUs of a job lie in one of these, or it waits; default: cluster
  (anywhere), but machine for a script without a session and with one worker
segments NxGPUS[/PLACE] a job's GPUs as N equal parts, each on one machine, or in one rack, socket or switch, as NVLink
  joins it
pinned ID run in this pinned cell of the queue, and nowhere else
opportunistic true|false use idle GPUs only, and lose them when their owners need them; default: false
lazy-preemption true|false if preempted within the queue, lose the guarantee first, and the GPUs only when they are
  needed
python PATH Python executable on the NodeManagers
gpu-type NAME type of GPU
""")
"""Short forms of `--conf isonomy.<name with _>=<value>`."""

STOCK_OPTIONS = _options("""\
f FILE YAML spec of the job instead of options
framework NAME tensorflow (default), pytorch, mxnet, keras (model.fit), command (anything else)
name NAME name of the job
queue QUEUE leaf queue; default: default
input_path PATH input; %input_path% in the launch command
checkpoint_path PATH checkpoints on HDFS; default: in the staging area; %checkpoint_path%
saved_model_path PATH final model; default: the checkpoint path; %saved_model_path%
num_workers N workers of one job; default 1
worker_resources R resources of one worker, for example memory=2G,vcores=2,gpu=1
worker_launch_cmd CMD command that trains; %name% of a searched parameter is replaced, %hyperparameters% by --a x --b y
num_ps N parameter servers of one TensorFlow job, in its workers' containers; default 0
ps_resources R what each server adds to its worker's container, for example memory=1G,vcores=1
ps_launch_cmd CMD command of the servers; default: the workers'
env K=V environment variable of the workers (repeatable)
localization URI:./NAME file or folder for the workers, local or on HDFS (repeatable)
conf K=V configuration; isonomy.* for groups (repeatable)
keytab FILE keytab for the login, on a secure cluster
principal NAME principal of the keytab
wait_job_finish - wait for the end and show progress; exit status 1 if the job fails
tensorboard - TensorBoard of what the jobs report, on the app's page
quicklink LABEL=URL a link on the app's page: http(s)://HOST:PORT, or worker-N for HOST (repeatable)
dry-run - submit nothing; say which GPUs a job would get now, or what would help
insecure - the cluster has no Kerberos
verbose - log more
help - this text
""")
REPEATABLE = ("env", "localization", "conf", "quicklink")
NO_DOCKER = "not supported; workers run in the NodeManagers' own Python (isonomy.python), leave it out"
NO_MXNET_SERVERS = (
    "MXNet's scheduler and servers are not supported, and its workers do not meet without them; "
    "use one worker, or --framework command for a script that needs none (Horovod)"
)
NO_BOARD = "TensorBoard runs beside the application master; leave it out"
REFUSED = {
    **dict.fromkeys(("docker_image", "worker_docker_image", "ps_docker_image"), NO_DOCKER),
    "num_schedulers": NO_MXNET_SERVERS,
    **dict.fromkeys(("tensorboard_resources", "tensorboard_docker_image"), NO_BOARD),
    "distribute_keytab": "not supported; the job runs on delegation tokens, leave it out",
    **dict.fromkeys(("scheduler_resources", "scheduler_launch_cmd", "scheduler_docker_image"), ""),
}
"""Stock options that the runtime does not support, and why; without a reason they mean nothing here."""


@dataclass(slots=True)
class RunArguments:
    """A parsed command line of `job run`."""

    stock: list[str] = field(default_factory=list)
    """The stock command line's arguments, with short options converted to --conf."""
    conf: dict[str, str] = field(default_factory=dict)
    """All isonomy.* pairs, without the prefix."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """All stock options given, each with its values; a flag has "true"."""
    wants_help: bool = False
    json: bool = False
    dry_run: bool = False
    session: bool = False
    """Whether its script has an isonomy session, as far as the checks could tell."""

    def value(self, option: str, default: str = "") -> str:
        """The last value of a stock option."""
        return self.values.get(option, [default])[-1]


def parse_run(argv: Sequence[str]) -> RunArguments:
    """Parse the options of `job run`; raises UsageError, for an unknown one with the nearest known option."""
    takes = {option.name: bool(option.metavar) for option in STOCK_OPTIONS}
    takes |= {name: name != "distribute_keytab" for name in REFUSED}
    group = [option.name for option in GROUP_OPTIONS]
    result = RunArguments()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise UsageError(f"{word}: not an option; quote values that have blanks")
        name, equals, inline = word.lstrip("-").partition("=")
        if name in ("o", "output"):
            result.json = _output(word, inline if equals else _value(word, rest))
        elif name in group:
            add_conf(result, name.replace("-", "_"), inline if equals else _value(word, rest))
        elif name in ("h", "help"):
            result.wants_help = True
        elif name == "dry-run":
            result.dry_run = True
        elif name in takes:
            value = "" if not takes[name] else inline if equals else _value(word, rest)
            _add_stock(result, name, value, flag=not takes[name])
        else:
            raise UsageError(_unknown(word, name, [*takes, *group]))
    return result


def _value(word: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"{word}: its value is absent")
    return rest.pop(0)


def _output(word: str, value: str) -> bool:
    if value not in ("json", "text"):
        raise UsageError(f"{word} {value}: must be json or text")
    return value == "json"


def _add_stock(result: RunArguments, name: str, value: str, *, flag: bool) -> None:
    if name == "conf" and value.startswith(PREFIX):
        key, equals, text = value.partition("=")
        if not equals:
            raise UsageError(f"--conf {value}: write key=value")
        add_conf(result, key.strip().removeprefix(PREFIX), text.strip())
        return
    if name in result.values and not flag and name not in REPEATABLE:
        raise UsageError(f"--{name}: given twice")
    result.values.setdefault(name, []).append("true" if flag else value)
    if name == "tensorboard":  # of TensorFlow only, for the stock command line
        add_conf(result, name, "true")
        return
    result.stock += [f"--{name}"] if flag else [f"--{name}", value]


def add_conf(result: RunArguments, key: str, value: str) -> None:
    """Add a pair to the group's configuration; raises UsageError for an unknown or repeated key."""
    if key in result.conf:
        raise UsageError(f"{PREFIX}{key}: given twice")
    known = [*(option.name.replace("-", "_") for option in GROUP_OPTIONS), "framework", "tensorboard"]
    if key not in known:
        nearest = get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0)[0]
        raise UsageError(f"--conf {PREFIX}{key}: unknown key; the nearest known one is {PREFIX}{nearest}")
    result.conf[key] = value
    result.stock += ["--conf", f"{PREFIX}{key}={value}"]


MEANT = {
    **dict.fromkeys(("gpu", "gpus"), "GPUs of a worker are in --worker_resources memory=2G,vcores=2,gpu=1"),
    **dict.fromkeys(("mem", "memory", "cpu", "cpus", "cores", "vcores"), "write --worker_resources memory=2G,vcores=2"),
    **dict.fromkeys(("cmd", "command", "script"), 'write --worker_launch_cmd "python train.py"'),
    **dict.fromkeys(("file", "files"), "write --localization ./train.py:."),
    **dict.fromkeys(("workers", "nodes", "ntasks"), "write --num_workers N"),
    "time": "write --hours H",
}
"""Names of other systems' options -> what to write here."""


def _unknown(word: str, name: str, known: list[str]) -> str:
    if name in MEANT:
        return f"{word}: unknown option; {MEANT[name]} (all: submarine job run --help)"
    nearest = get_close_matches(name, known, n=1, cutoff=0)[0]
    return f"{word}: unknown option; the nearest known one is --{nearest} (all: submarine job run --help)"
