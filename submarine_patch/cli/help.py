"""Help texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from submarine_patch.cli.options import GROUP_OPTIONS, STOCK_OPTIONS, Option

USAGE = """\
usage: submarine job run OPTIONS     submit a job, or a group of jobs
       submarine job show NAME       what is known of a job
       submarine job list            the jobs that share the cluster
       submarine job logs NAME       logs of a job's workers
       submarine job kill NAME       end a job

`submarine job run --help` explains all options. HADOOP_CONF_DIR names the cluster's configuration.
"""

RUN_INTRO = """\
usage: submarine job run --name NAME --worker_resources R --worker_launch_cmd CMD [OPTIONS]

Submits one YARN application: a job, or a group of jobs that an app scheduler such as Hyperband
starts, compares and stops. Everything is checked before anything is submitted.
"""

RUN_EXAMPLE = """\
example:
  submarine job run --name digits --queue research --worker_resources memory=2G,vcores=2 \\
    --localization ./train.py:. --worker_launch_cmd "python train.py %hyperparameters%" \\
    --app-scheduler hyperband --search-space space.yaml --max-iterations 27 --gpus-per-job 2 --wait_job_finish
"""


def run_help() -> str:
    """The text of `submarine job run --help`."""
    return f"""{RUN_INTRO}
groups of jobs (each is also --conf isonomy.<name with _>=value):
{_table(GROUP_OPTIONS)}

options of Submarine:
{_table(STOCK_OPTIONS)}

  -o json
      one line of JSON: application id, exit status, start and end; the rest is on standard error

{RUN_EXAMPLE}"""


def _table(options: Iterable[Option]) -> str:
    lines = []
    for option in options:
        head = f"--{option.name} {option.metavar}".rstrip()
        lines.append(f"  {head}")
        lines += textwrap.wrap(option.help, 100, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)
