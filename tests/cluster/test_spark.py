"""PySpark from PyPI on a real cluster, beside an `nvidia-smi` that lists all of the machine's GPUs.

`make spark-test` installs PySpark apart, since it brings a cluster's client of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pycontrol.hadoopconf.render import confs_dir
from tests.cluster.rig import REPO, Rig

pytestmark = [pytest.mark.versions, pytest.mark.timeout(1800)]
SPARK = REPO / "build" / "spark" / "bin"
SCRIPT = confs_dir() / "nodemanager" / "isonomy-spark-gpus"
APP = """
import json, os, time
from pyspark import TaskContext
from pyspark.sql import SparkSession

def told(_):
    time.sleep(5)  # so that both executors get tasks
    listed = os.popen("nvidia-smi --query-gpu=index --format=csv,noheader").read().split()
    return {"addresses": TaskContext.get().resources()["gpu"].addresses, "listed": listed,
            "visible": os.environ["CUDA_VISIBLE_DEVICES"], "container": os.environ["CONTAINER_ID"]}

spark = SparkSession.builder.appName("spark").getOrCreate()
print("TOLD", json.dumps(spark.sparkContext.parallelize(range(8), 8).map(told).collect()))
"""


def test_each_executor_of_spark_is_told_of_its_containers_gpu_alone(tmp_path: Path) -> None:
    if not (SPARK / "spark-submit").exists():
        pytest.skip("no PySpark here: make spark-test")
    smi, app = tmp_path / "bin" / "nvidia-smi", tmp_path / "app.py"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n3\\n'\n")
    smi.chmod(0o755)
    app.write_text(APP)
    conf = {
        "spark.executor.instances": "2",
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": str(SCRIPT),
        "spark.executorEnv.PATH": f"{smi.parent}:{os.environ['PATH']}",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.yarn.tags": "isonomy.max_hours=1",
        "spark.yarn.jars": f"local:{next(SPARK.parent.glob('lib/*/site-packages/pyspark/jars'))}/*",
    }
    rig = Rig(tmp_path / "dc", "isonomy")
    try:
        words = [str(SPARK / "spark-submit"), "--master", "yarn", "--queue", "research"]
        words += [x for key, value in conf.items() for x in ("--conf", f"{key}={value}")]
        env = rig.env | {"PYSPARK_PYTHON": str(SPARK / "python"), "HADOOP_CONF_DIR": rig.cluster["conf"]}
        done = subprocess.run([*words, str(app)], env=env, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        tasks = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("TOLD ")).removeprefix("TOLD "))
        assert {json.dumps(t["addresses"]) for t in tasks} == {'["0"]'}, "one GPU, as CUDA numbers it"
        assert {json.dumps(t["listed"]) for t in tasks} == {'["0", "1", "2", "3"]'}, "what Spark's own script would say"
        visible = {t["container"]: t["visible"] for t in tasks}
        assert len(visible) == 2
        records = [json.loads(x) for f in rig.folder.glob("data/*/isonomy-evidence.jsonl") for x in f.open()]
        held = {r["container"]: r["gpu_ids"] for r in records if r["event"] == "start"}
        assert {c: [int(v)] for c, v in visible.items()} == {c: held[c] for c in visible}
        assert all(r["lease"] for r in records if r["container"] in visible), "Isonomy gave them their GPUs"
    finally:
        rig.down()
