"""`isonomy get`: what an app left on HDFS: its model or folder, and its results."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from pycontrol.cli.client import FOLDER, Failure, Misused, Rm, failing, rm_address
from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.sitefile import webhdfs_url
from pycontrol.negotiate import session

TIMEOUT_S = (3.0, 30.0)


@click.command("get")
@click.argument("app")
@click.argument("folder", required=False, type=FOLDER)
def get_command(app: str, folder: Path | None) -> None:
    """Fetch what is kept of APP into FOLDER [default: its name or id]: its model or kept folder, its results.

    \b
    isonomy get my-sweep
    isonomy get my-sweep /tmp/sweep    trials.csv, launches.csv, curves.svg are in results-APP

    HADOOP_CONF_DIR names the HDFS. What is there already is not written over.
    """
    client = Rm(rm_address())
    about = client.get("explain", app=app)["app"]
    store = _store(client.user)
    kept, folder = _kept(store, about), folder or Path(_harmless(about["name"], about))
    with failing(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    for path in kept:
        target = folder / _harmless(path.rpartition("/")[2], about)
        if target.exists():
            raise Failure(f"{target} is there already; name another folder: isonomy get {app} FOLDER")
        _asked(path, partial(store.download, path, str(target)))
        click.echo(target)


def read_results(user: str, about: dict[str, Any], name: str) -> str:
    """The text of one of the result files of an app that has ended; raises Failure."""
    path = f"{_results(about)}/{name}"

    def read() -> str:
        with _store(user).read(path, encoding="utf-8") as file:
            return str(file.read())

    return str(_asked(path, read))


def _kept(store: Any, about: dict[str, Any]) -> list[str]:
    """The paths of the model, if there is one, and of the results, if they are there."""
    results, model = _results(about), urlsplit(about["model_path"]).path
    paths = dict.fromkeys([model, results])
    found = [path for path in paths if _asked(path, partial(store.status, path, strict=False))]
    if not found:
        raise Failure(f"{about['name']}: {about['model_path']} is no longer there")
    return found


def _harmless(name: str, about: dict[str, Any]) -> str:
    """The name, which is its owner's choice, if it is that of a visible file right here; else the app's id."""
    return name if name and name[0] != "." and "/" not in name and name.isprintable() else str(about["app_id"])


def _results(about: dict[str, Any]) -> str:
    if not about["model_path"]:
        state = f"{about['message'] or about['final_state']}" if about["finished_s"] else "it has not ended"
        raise Failure(f"{about['name']}: nothing is kept of it: {state}")
    return f"{urlsplit(about['model_path']).path.rpartition('/')[0]}/results-{about['app_id']}"


def _store(user: str) -> Any:
    """A client of WebHDFS; a secure one gets the Kerberos ticket."""
    from hdfs import InsecureClient

    with failing(ConfigError, instead=Misused):
        return InsecureClient(webhdfs_url(), user=user, timeout=TIMEOUT_S, session=session())


def _asked(path: str, call: Any) -> Any:
    """The answer of HDFS; raises Failure with its first line."""
    from hdfs.util import HdfsError
    from requests import ConnectionError, RequestException, Timeout

    try:
        return call()
    except (ConnectionError, Timeout) as e:
        raise Failure(f"HDFS at {webhdfs_url()} cannot be reached; is its NameNode up?") from e
    except (HdfsError, RequestException, OSError) as e:
        raise Failure(f"{path} cannot be fetched: {(str(e).strip().splitlines() or ['no answer'])[0]}") from e
