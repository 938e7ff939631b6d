"""Keeps a folder of the program's own checkpoints on HDFS from one launch to the next.

DIR/kept has the files under their digests, and one list LAUNCH-NUMBER.json per saved version, in the order of mtimes,
beside LAUNCH-NUMBER-links.json if there are links. The list is written last, so a reader sees a complete folder or the
previous one. The later launch counts as newer, even if an older one still writes. The gang's first worker saves its
folder; all workers restore it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from submarine_patch.worker import say
from submarine_patch.worker.checkpoints import (
    CHUNK_BYTES,
    TRIES,
    Damaged,
    Data,
    Files,
    StoreError,
    as_told,
    copied,
    files_of_env,
)

ROOT = "kept"
LISTS = 2
"""Lists kept, with their files: the newest may be read while the next is written."""
PAUSE_S = 1.0
"""Pause before another try if a file was written to."""
LOG_BYTES = 1 << 16
"""A file that grows by no more than this during a try is a log; one that grows faster may be half a checkpoint."""
LINK = "-> "
PART = ".isonomy-part"
"""Name of a file that is being restored, beside its own place."""
_LIST = re.compile(r"(\d{13}-\d{6})\.json")

Seen = tuple[int, int, str]
"""A file's size, mtime in ns, and digest; for a link LINK and its target, or "" if that is not in the folder."""


class KeptFolder:
    """The kept folder in one launch."""

    def __init__(self, files: Files, folder: Path, launch_ms: int | None = None) -> None:
        self._files, self._folder, self._number, self._fresh = files, folder, 0, not folder.exists()
        self._launch = f"{int(time.time() * 1000) if launch_ms is None else launch_ms:013d}"
        self._there: dict[str, str] = {}
        """{path: digest} of the newest saved version."""
        self._held: set[str] = set()
        """Digests of the files in the store, also of those that no version lists yet."""
        self._seen: dict[str, Seen] = {}
        """By path, so that an unchanged file is hashed only once."""

    def bring(self) -> int:
        """Restore the newest complete version; returns its number of files. Raises StoreError."""
        lists = _lists(self._files)
        if lists:  # this launch is later, whatever its machine's clock says
            self._launch = max(self._launch, f"{int(lists[0][:13]) + 1:013d}")
        for name in lists:
            listed = _read(self._files, name)
            links = _read(self._files, f"{name}-links") or {}
            if listed is not None and self._fetched(version := {**listed, **links}):
                self._there, self._held = version, {*listed.values()}
                return len(listed)
            if self._fresh:  # of a damaged version nothing may stay beside the previous one
                shutil.rmtree(self._folder, ignore_errors=True)
        return 0

    def keep(self) -> bool:
        """Save the folder as it is at one moment; False if the program wrote nothing since the last call.

        Raises StoreError if the program writes all the time; a log may grow.
        """
        before = self._seen
        first = now = self._looked({})
        for again in reversed(range(TRIES)):
            listed = _listed(now)
            if not listed or [*listed.items()] == [*self._there.items()]:
                return bool(listed) and now != before
            self._held &= {*self._files.names(ROOT)}  # an older launch that lingers may delete some
            for path, digest in listed.items():
                if digest not in self._held and not digest.startswith(LINK):
                    self._files.write(f"{ROOT}/{digest}", partial(self._beginning, path, now[path][0]))
            later = self._looked({} if again else {path: now[path][0] for path in now if path in first})
            changed = sorted({path for path, _ in listed.items() ^ _listed(later).items()})
            self._held.update(digest for path, digest in listed.items() if path not in changed)
            if not changed:
                self._save(listed)
                return True
            time.sleep(PAUSE_S)
            now = self._looked({})
        raise StoreError(f"{changed[0]} is written to all the time")

    def _save(self, listed: dict[str, str]) -> None:
        self._number += 1
        name = f"{self._launch}-{self._number:06d}"
        links = {path: to for path, to in listed.items() if to.startswith(LINK)}
        files = {path: digest for path, digest in listed.items() if path not in links}
        if links:
            self._files.write(f"{ROOT}/{name}-links.json", json.dumps(links).encode())
        self._files.write(f"{ROOT}/_{name}.json", json.dumps(files).encode())
        self._files.rename(f"{ROOT}/_{name}.json", f"{ROOT}/{name}.json")
        self._there = listed
        self._drop_old()

    def _fetched(self, listed: Mapping[str, str]) -> bool:
        for number, (path, digest) in enumerate(listed.items()):
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(PART)
            try:
                if digest.startswith(LINK):
                    part.symlink_to(digest.removeprefix(LINK))
                else:
                    with part.open("wb") as out:
                        out.writelines(as_told(self._files, f"{ROOT}/{digest}", digest))
            except (FileNotFoundError, Damaged):
                part.unlink(missing_ok=True)
                return False
            part.rename(target)
            mtime = time.time_ns() - (len(listed) - number) * 1_000_000  # past, by this machine's clock
            for changed in (target, *(self._folder / above for above in Path(path).parents)):
                os.utime(changed, ns=(mtime, mtime), follow_symlinks=False)
            self._seen[path] = (*_stamp(target), digest)
        return True

    def _looked(self, sizes: Mapping[str, int]) -> dict[str, Seen]:
        """All files and links as they are now; of a file that grew little beyond its size in `sizes`, so much."""
        found: dict[str, Seen] = {}
        for at in sorted(self._folder.rglob("*")) if self._folder.is_dir() else ():
            try:
                link = at.is_symlink()
                if not link and not at.is_file():
                    continue
                path, (size, mtime) = at.relative_to(self._folder).as_posix(), _stamp(at)
                known = self._seen.get(path)
                if known is None or known[:2] != (size, mtime):
                    was = sizes.get(path, size)
                    size = was if was < size <= was + LOG_BYTES else size
                    known = (size, mtime, self._link(at) if link else self._digest(path, size))
                found[path] = known
            except FileNotFoundError:
                continue  # the program deleted it meanwhile
        self._seen = found
        return found

    def _link(self, at: Path) -> str:
        target = Path(os.path.normpath(at.parent / at.readlink()))
        if target.is_relative_to(self._folder):
            return LINK + os.path.relpath(target, at.parent)
        say(f"{at} leads out of the folder: it is not kept")
        return ""

    def _digest(self, path: str, size: int) -> str:
        seen = hashlib.sha256()
        for chunk in self._beginning(path, size):
            seen.update(chunk)
        return seen.hexdigest()

    def _beginning(self, path: str, size: int) -> Iterator[bytes]:
        with (self._folder / path).open("rb") as file:
            while chunk := file.read(min(size, CHUNK_BYTES)):
                size -= len(chunk)
                yield chunk

    def _drop_old(self) -> None:
        """Delete all lists but the newest LISTS, and files that none of these names."""
        lists = _lists(self._files)
        for name in lists[LISTS:]:
            self._files.delete(f"{ROOT}/{name}-links.json")
            self._files.delete(f"{ROOT}/{name}.json")
        if lists and not lists[0].startswith(self._launch):
            return  # a later launch saves now: its files are not listed yet
        named = {digest for name in lists[:LISTS] for digest in (_read(self._files, name) or {}).values()}
        for name in self._files.names(ROOT):
            if re.fullmatch(r"[0-9a-f]{64}", name) and name not in named:
                self._files.delete(f"{ROOT}/{name}")


def copy_kept(source: Files, target: Files, folder: str) -> str:
    """Copy the newest complete version in `source` to `target`; returns its name there, from `folder` and its number.

    Idempotent: a complete copy is left alone. Raises FileNotFoundError if there is no version.
    """
    stem, there = Path(folder).name, target.names("")
    for version in _lists(source):
        listed, name = _read(source, version), f"{stem}-{version}"
        if listed is None:
            continue
        parts: dict[str, Data] = {p: partial(as_told, source, f"{ROOT}/{of}", of) for p, of in listed.items()}
        if name in there or copied(target, name, parts):
            return name
    raise FileNotFoundError(f"{folder} was never kept")


def _listed(seen: Mapping[str, Seen]) -> dict[str, str]:
    return {path: digest for path, (_, _, digest) in sorted(seen.items(), key=lambda one: one[1][1]) if digest}


def _stamp(at: Path) -> tuple[int, int]:
    about = at.lstat()
    return about.st_size, about.st_mtime_ns


def _lists(files: Files) -> list[str]:
    """LAUNCH-NUMBER of the saved versions, newest first."""
    return sorted((m[1] for n in files.names(ROOT) if (m := _LIST.fullmatch(n))), reverse=True)


def _read(files: Files, name: str) -> Mapping[str, str] | None:
    try:
        listed = json.loads(files.read(f"{ROOT}/{name}.json"))
    except (FileNotFoundError, ValueError):
        return None
    safe = isinstance(listed, dict) and not any(p.startswith("/") or ".." in Path(p).parts for p in listed)
    return listed if safe else None


def kept_folder(env: Mapping[str, str], checkpoint_dir: str) -> KeptFolder | None:
    """The folder that ISONOMY_KEEP_FOLDER names; None if it is not set or the store cannot be used."""
    name = env.get("ISONOMY_KEEP_FOLDER", "")
    if not name or not checkpoint_dir:
        return None
    try:
        return KeptFolder(files_of_env(checkpoint_dir, env), Path(os.getcwd(), name))
    except StoreError as e:
        say(f"{name} is not kept: {e}")
        return None
