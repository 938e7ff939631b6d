"""The command and environment of a worker's container."""

from __future__ import annotations

import shlex

from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent.jobs import Job, Worker
from submarine_patch.agent.spec import AppSpec
from submarine_patch.worker import servers
from submarine_patch.worker.webhdfs import CA_VARIABLE


def checkpoint_dir(spec: AppSpec, job: Job) -> str:
    """The folder of the job's checkpoints, one per app and job."""
    return f"{spec.checkpoint.rstrip('/')}/{spec.app_id}/{job.job_id}"


def launch_of(spec: AppSpec, job: Job, worker: Worker, container_id: str) -> am.AmLaunch:
    """The launch of a worker: the supervisor with the user's command. Secrets are in YARN's Credentials, not here."""
    env = {
        **spec.env,
        "ISONOMY_ARBITER": spec.arbiter,
        "ISONOMY_APP_ID": spec.app_id,
        "ISONOMY_JOB_ID": job.job_id,
        "ISONOMY_WORKER_ID": worker.worker_id,
        "ISONOMY_HOST": worker.host,
        "ISONOMY_WEBHDFS": spec.webhdfs,
        "ISONOMY_CHECKPOINT_DIR": checkpoint_dir(spec, job),
        "ISONOMY_METRIC": spec.metric,
        "HADOOP_USER_NAME": spec.hdfs_user,
    }
    if spec.servers:
        sizes = [len(w.gpu_ids) for w in job.workers]
        env[servers.PORTS] = str(len(servers.tasks(job.workers.index(worker), sizes, spec.servers)))
    given = {
        servers.COMMAND: spec.server_cmd and spec.command(job.configuration, spec.server_cmd),
        "ISONOMY_EPOCHS": str(spec.epochs or ""),
        "ISONOMY_KEEP_FOLDER": spec.keep_folder,
        "ISONOMY_ARBITER_CA": spec.ca,
        CA_VARIABLE: spec.webhdfs_ca,
    }
    env |= {name: value for name, value in given.items() if value}
    command = f"{spec.python} -m submarine_patch.worker -- {shlex.quote(spec.command(job.configuration))}"
    resources = [am.AmResource(name=r["name"], uri=r["uri"], archive=bool(r.get("archive"))) for r in spec.resources]
    return am.AmLaunch(container_id=container_id, command=command, env=env, resources=resources)
