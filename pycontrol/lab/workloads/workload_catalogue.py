"""All workloads and trace formats."""

from __future__ import annotations

from pycontrol.lab.workloads import own_format, yarn_history
from pycontrol.lab.workloads.front import Catalogue, Format, Generator
from pycontrol.lab.workloads.gavel_traces import gavel, is_gavel
from pycontrol.lab.workloads.hived import Hived, hived
from pycontrol.lab.workloads.imports import CSV_FORMATS, PAI, pai
from pycontrol.lab.workloads.oef_workloads import Oef20, OefWorkload, oef, oef_20
from pycontrol.lab.workloads.philly import philly
from pycontrol.lab.workloads.themis_workloads import ThemisWorkload, w1, w2

ABOUT = {
    "philly-jobs": "Philly's jobs, reconstructed CSV",
    "philly-subset": "Philly's jobs as Pollux used them, CSV",
    "themis-apps": "Philly's jobs grouped into apps, CSV",
    "pcs": "a virtual cluster of Philly as PCS has it, CSV",
    "tiresias": "Tiresias', Muri's, ElasticFlow's and Chronus' traces, CSV",
    "helios": "Helios' cluster_log.csv",
    "openb": "Alibaba's pods of 2023, CSV",
    "pollux": "Pollux' and Sia's workloads, CSV (GPU time is drawn by application)",
}


def _is_philly(text: str) -> bool:
    return text.lstrip()[:1] == "["


def _first_line(text: str) -> list[str]:
    return text.partition("\n")[0].rstrip("\r").split(",")


def _has(columns: frozenset[str], text: str) -> bool:
    return columns <= {c.strip() for c in _first_line(text)}


def _csv(name: str) -> Format:
    columns, reader = CSV_FORMATS[name]
    return Format(reader, ABOUT[name], lambda text: _has(columns, text))


TESTBED = {"shorter": 10.0}
"""The load stays (about 55 of 64 GPUs), the two weeks become 34 hours."""
CATALOGUE = Catalogue(
    {
        "w1": Generator(ThemisWorkload, w1, "Themis' Workload 1: 85 apps in two weeks, up to 100 jobs of 1 to 2 GPUs"),
        "w2": Generator(ThemisWorkload, w2, "Themis' Workload 2: w1's apps by successive halving, jobs of 1 to 8 GPUs"),
        "w1-testbed": Generator(ThemisWorkload, w1, "w1 in a tenth of the time, for 64 GPUs", TESTBED),
        "w2-testbed": Generator(ThemisWorkload, w2, "w2 in a tenth of the time, for 64 GPUs", TESTBED),
        "hived": Generator(Hived, hived, "HiveD's trace: 141,950 jobs of 11 tenants on 2,232 GPUs in two months"),
        "oef": Generator(OefWorkload, oef, "OEF's completion times: 50 tenants of 20 jobs on 24 GPUs of three types"),
        "oef-20": Generator(Oef20, oef_20, "OEF's throughput: 20 tenants that always have work, the same GPUs"),
    },
    {
        "isonomy": Format(
            own_format.read,
            "Isonomy's own CSV (isonomy workload show NAME --out FILE)",
            lambda text: text.startswith(own_format.MARK),
        ),
        "yarn": Format(
            yarn_history.read,
            "a YARN's past: saved /ws/v1/cluster/apps, the ResourceManager's log, a Spark event log, a .jhist",
            yarn_history.fits,
        ),
        "philly": Format(philly, "the original Philly trace: cluster_job_log, JSON", _is_philly),
        "gavel": Format(gavel, "Gavel's and Shockwave's traces, tab-separated", is_gavel),
        **{name: _csv(name) for name in CSV_FORMATS},
        "pai": Format(
            pai,
            "Alibaba's pai_task_table of 2020, CSV without a header",
            lambda text: len(_first_line(text)) == len(PAI),
        ),
    },
)
"""A file is of the first format that fits it."""
load = CATALOGUE.load
