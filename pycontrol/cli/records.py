"""`isonomy audit`: what the records of a run say, with or without a running cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.audit.audit import GANG_DEADLINE_S, LEAD_S, audit
from pycontrol.audit.evidence import EvidenceError, read_evidence, read_rm_log
from pycontrol.audit.history import History
from pycontrol.cli import screens
from pycontrol.cli.client import ABOVE_0, F, Misused, cluster_dir_option, failing, file_option, output_option
from pycontrol.cli.tables import emit
from pycontrol.config import ConfigError, load_config
from pycontrol.config.accounts_section import accounts_of
from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.runtime.journal import JournalError, read_facts

EVIDENCE_FILE = "isonomy-evidence.jsonl"


@dataclass
class Records:
    """Where a run's records are."""

    journals: tuple[Path, ...]
    """One; of a pair of control planes all."""
    evidence: tuple[str, ...]
    rm_log: tuple[str, ...]
    topology: Path | None = None
    lead_s: float = LEAD_S
    accounts: Accounts = NO_ACCOUNTS


def records_of(
    cluster_dir: Path,
    journals: tuple[Path, ...],
    evidence: tuple[str, ...],
    rm_log: tuple[str, ...],
    config: Path | None = None,
) -> Records:
    """As given; else the journal and topology that an isonomy.yaml names, else a dev-cluster's."""
    if journals:
        return Records(journals, evidence, rm_log)
    if config is not None:
        with failing(ConfigError, instead=Misused):
            found = load_config(config)
        accounts = accounts_of(found.accounts)
        return Records((found.journal_file,), evidence, rm_log, found.topology, found.lead_s, accounts)
    file = cluster_dir / "cluster.json"
    try:
        cluster = json.loads(file.read_text(encoding="utf-8"))
        roles: dict[str, Any] = cluster["roles"]
        files = cluster.get("isonomy_yamls") or [cluster["isonomy_yaml"]]
        with failing(ConfigError, instead=Misused):
            configs = [load_config(file) for file in files]
        journals = tuple(c.journal_file for c in configs)
        if len(journals) > 1:  # of a pair, with those that were set aside at a failover
            journals = tuple(file for j in journals for file in sorted(j.parent.glob(f"{j.stem}*{j.suffix}")))
        nodes = [r for name, r in roles.items() if name.startswith("nodemanager")]
        evidence = evidence or tuple(str(Path(r["data"]) / EVIDENCE_FILE) for r in nodes)
        rm_log = rm_log or tuple(str(r["log"]) for name, r in roles.items() if name.startswith("resourcemanager"))
        lead_s, accounts = max(c.lead_s for c in configs), accounts_of(configs[0].accounts)
        return Records(journals, evidence, rm_log, Path(cluster["topology"]), lead_s, accounts)
    except OSError as e:
        where = "give --config isonomy.yaml (or set ISONOMY_CONFIG), --journal FILE, or --cluster-dir of a dev-cluster"
        raise Misused(f"{file}: {e.strerror}; {where}") from e
    except (ValueError, KeyError, TypeError) as e:
        raise Misused(f"{file}: cannot be understood ({e!r}); give --journal instead") from e


def facts_of(journal: Path, after: int = 0) -> Iterator[tuple[int, float, Fact]]:
    """All facts of a journal after a sequence number; one clear line where it is none."""
    if not journal.is_file():
        raise Misused(f"{journal}: there is no such journal")
    with failing(JournalError):
        yield from read_facts(journal, after)


def audited(records: Records, gang_deadline_s: float, now_s: float) -> dict[str, Any]:
    """The audit of these records, one control plane after the other; one without facts was never in charge."""
    with failing(EvidenceError):
        evidence, yarn = read_evidence(records.evidence), read_rm_log(records.rm_log)
    begun = [(first[1], j) for j in records.journals if (first := next(facts_of(j), None)) is not None]
    history = History.of(*(facts_of(journal) for _, journal in sorted(begun)))
    return audit(history, evidence, yarn, now_s, gang_deadline_s, records.lead_s)


def journals_options(command: F) -> F:
    """--journal, --config and --cluster-dir, each of which names journals."""
    command = cluster_dir_option(command)
    command = file_option("--config", envvar="ISONOMY_CONFIG", help="isonomy.yaml, which names the journal.")(command)
    about = "The control plane's journal, of a pair each [default: the dev-cluster's]."
    return file_option("--journal", "journals", multiple=True, help=about)(command)


def records_options(command: F) -> F:
    """The options that name a run's records."""
    about = "A gang starts or stops whole within this time."
    logs = "The ResourceManager's log with its audit lines, rotated ones (.gz) too; may be repeated."
    files = "Evidence files of the NodeManagers, rotated ones (.gz) too; may be repeated."
    command = click.option(
        "--gang-deadline", type=ABOVE_0, default=GANG_DEADLINE_S, show_default=True, metavar="SECONDS", help=about
    )(command)
    command = click.option("--rm-audit-log", "rm_log", multiple=True, metavar="GLOB", help=logs)(command)
    return journals_options(click.option("--evidence", multiple=True, metavar="GLOB", help=files)(command))


@click.command("audit")
@records_options
@output_option
def audit_command(gang_deadline: float, output: str, **records: Any) -> None:
    """Check the journal against what the NodeManagers and the ResourceManager recorded.

    No GPU in two containers at once; no container without a lease; no lease lost; no gang split; each
    container's CUDA_VISIBLE_DEVICES what was granted. Exit status 1 on a violation, or where the NodeManagers'
    evidence is missing; what could not be checked is named.

    \b
    isonomy audit                                          the dev-cluster in build/dev-cluster
    isonomy audit --journal state/journal.sqlite \\
        --evidence '/var/lib/hadoop/*/isonomy-evidence.jsonl*' --rm-audit-log /var/log/hadoop/rm-audit.log
    """
    found = audited(records_of(**records), gang_deadline, time.time())
    emit(found, output, screens.audit)
    sys.exit(1 if found["violations"] or not found["complete"] else 0)
