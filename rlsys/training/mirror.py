"""A copy of a run directory at an fsspec URL, for runs whose machines and disks may go away.

    URL/checkpoints/step-40/...   the files of run_dir/checkpoints/step-40; state.json is sent last
        metrics.jsonl, samples/, ...   what the run reports, as it was after the newest checkpoint
        export/, finished.json    the result, once the run has finished
        writer.json               who writes here

Object stores have no rename. A checkpoint there is whole if its state.json is there, because that
file is sent after all others and deleted before all others. It holds the hash of every other file,
and these are compared when a checkpoint is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsys.config import RunConfig
from rlsys.errors import CheckpointError, ConfigError, RunFolderError
from rlsys.training.checkpoint_files import STATE, Damage, verify
from rlsys.training.checkpoints import WHOLE, whole_steps
from rlsys.training.run_folder import CHECKPOINTS, EXPORT, FINISHED
from rlsys.training.run_lock import LOCK

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

WRITER: Final = "writer.json"
APART: Final = frozenset({CHECKPOINTS, EXPORT, FINISHED, LOCK, WRITER})
"""Names at the top of the folder that are no records."""


class Mirror:
    """The copy of one run directory. Every method blocks; they must not overlap."""

    def __init__(self, url: str, run_dir: Path, keep: int) -> None:
        """Raises ConfigError if fsspec has no file system for `url`. Nothing is read or written.

        Args:
            url: of the folder, for instance s3://bucket/runs/demo.
            run_dir: the local folder.
            keep: number of checkpoints at the URL.
        """
        self._url = url.rstrip("/")
        self._run_dir = run_dir
        self._keep = keep
        self.tell: Callable[[str], None] = print
        """Takes one sentence for the user."""
        self._files, self._root = _file_system(self._url)
        self._sent: dict[str, tuple[int, int]] = {}
        """Time and size of every record that was sent, by its name."""
        self._writer = json.dumps(
            {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        )

    def restore(self) -> None:
        """Fetch the newest checkpoint and what belongs to it, if that in run_dir is older.

        Raises CheckpointError: the URL cannot be read, or there are checkpoints and none is whole.
        """
        here = self._newest_here()
        with self._reached("read"):
            newer = [step for step in self._steps() if step > here]
            for step in reversed(newer):
                if self._fetched(step):
                    self._fetch_records(step)
                    self.tell(f"checkpoint of step {step} was fetched from {self._url}")
                    return
        if newer and not here:
            raise CheckpointError(
                f"no checkpoint in {self._url} is whole; restore one from a backup, or give "
                "another checkpoint.mirror for a new run"
            )

    def claim(self) -> None:
        """From now on this run writes to the URL; another one that did ends at its next save."""
        with self._reached("written"):
            self._write(WRITER, self._writer)

    def save(self, step: int) -> None:
        """Send the checkpoint of `step` and the records, then delete checkpoints beyond `keep`.

        A failure is told and not raised: the run goes on, and the next checkpoint is sent again.

        Raises RunFolderError if another run has claimed the URL.
        """
        try:
            with self._reached("written"):
                self._check_writer()
                self._send_checkpoint(step)
                self._send_records()
                self._prune(step)
        except CheckpointError as error:
            self.tell(f"warning: the checkpoint of step {step} was not copied: {error}")

    def finish(self) -> None:
        """Send the records and, if the run has finished, its export.

        Raises CheckpointError if the URL cannot be written and the run has finished.
        """
        finished = (self._run_dir / FINISHED).exists()
        try:
            with self._reached("written"):
                self._check_writer()
                self._send_records()
                if finished:
                    self._delete(EXPORT)
                    for file in _below(self._run_dir / EXPORT):
                        self._send(file)
                    self._send(self._run_dir / FINISHED)
        except CheckpointError as error:
            if finished:
                raise
            self.tell(f"warning: the last records were not copied: {error}")

    def _newest_here(self) -> int:
        """Step of the newest checkpoint in run_dir that is as it was written; 0 without one."""
        folder = self._run_dir / CHECKPOINTS
        for step in reversed(whole_steps(folder)):
            with suppress(Damage):
                return verify(folder / f"step-{step}").step
        return 0

    def _steps(self) -> list[int]:
        """Steps of the whole checkpoints at the URL, oldest first."""
        self._files.invalidate_cache()  # some file systems remember what they have listed
        folder = f"{self._root}/{CHECKPOINTS}"
        if not self._files.exists(folder):
            return []
        names = (name.rstrip("/").rpartition("/")[2] for name in self._files.ls(folder, False))
        steps = [int(match[1]) for name in names if (match := WHOLE.fullmatch(name))]
        return sorted(s for s in steps if self._files.exists(f"{folder}/step-{s}/{STATE}"))

    def _fetched(self, step: int) -> bool:
        """Fetch a checkpoint and verify its hashes; False if it is damaged."""
        name = f"{CHECKPOINTS}/step-{step}"
        aside = self._run_dir / CHECKPOINTS / f".step-{step}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        self._fetch(name, aside / f"step-{step}")
        try:
            verify(aside / f"step-{step}")
        except Damage as damage:
            self.tell(f"checkpoint {self._url}/{name} is damaged and not used: {damage}")
            return False
        else:
            if (damaged := self._run_dir / name).exists():
                os.replace(damaged, damaged.with_name(f"{damaged.name}.damaged-{uuid.uuid4().hex}"))
            os.replace(aside / f"step-{step}", self._run_dir / name)
            return True
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _fetch_records(self, step: int) -> None:
        for path in self._files.find(self._root):
            name = path[len(self._root) :].strip("/")
            if name.split("/")[0] not in APART:
                self._fetch_file(path, self._run_dir / name)
        finished = f"{self._root}/{FINISHED}"
        if self._files.exists(finished) and step == json.loads(self._files.cat(finished))["step"]:
            self._fetch(EXPORT, self._run_dir / EXPORT)
            self._fetch_file(finished, self._run_dir / FINISHED)

    def _fetch(self, name: str, target: Path) -> None:
        folder = f"{self._root}/{name}"
        for path in self._files.find(folder):
            self._fetch_file(path, target / path[len(folder) :].strip("/"))

    def _fetch_file(self, path: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._files.get_file(path, str(target))

    def _check_writer(self) -> None:
        self._files.invalidate_cache()
        found = self._files.cat(f"{self._root}/{WRITER}").decode()
        if found != self._writer:
            owner = json.loads(found)
            raise RunFolderError(
                f"process {owner['pid']} on host {owner['host']} has started to write to "
                f"checkpoint.mirror {self._url!r}, so this run ends; let one run use it at a time"
            )

    def _send_checkpoint(self, step: int) -> None:
        folder = self._run_dir / CHECKPOINTS / f"step-{step}"
        # An old one under this name is of a run that went on from an earlier step.
        self._delete_checkpoint(step)
        for file in _below(folder):
            if file != folder / STATE:
                self._send(file)
        self._send(folder / STATE)

    def _send_records(self) -> None:
        for file in _below(self._run_dir):
            name = str(file.relative_to(self._run_dir))
            parts = Path(name).parts
            if parts[0] in APART or any(part.startswith(".") for part in parts):
                continue
            status = file.stat()
            if self._sent.get(name) != (status.st_mtime_ns, status.st_size):
                self._send(file, may_grow=True)
                self._sent[name] = (status.st_mtime_ns, status.st_size)

    def _prune(self, step: int) -> None:
        # Later ones were damaged when this run started. Like damaged ones on a disk, they stay.
        for old in [s for s in self._steps() if s <= step][: -self._keep]:
            self._delete_checkpoint(old)

    def _send(self, file: Path, *, may_grow: bool = False) -> None:
        path = f"{self._root}/{file.relative_to(self._run_dir)}"
        size = file.stat().st_size
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), path)
        self._files.invalidate_cache()
        found = self._files.size(path)
        if found != size and not may_grow:
            raise OSError(f"{path} has {found} bytes instead of {size}")

    def _write(self, name: str, text: str) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        self._files.pipe_file(f"{self._root}/{name}", text.encode())

    def _delete_checkpoint(self, step: int) -> None:
        name = f"{CHECKPOINTS}/step-{step}"
        if self._files.exists(state := f"{self._root}/{name}/{STATE}"):
            self._files.rm_file(state)
        self._delete(name)

    def _delete(self, name: str) -> None:
        if self._files.exists(path := f"{self._root}/{name}"):
            self._files.rm(path, recursive=True)

    @contextmanager
    def _reached(self, done: str) -> Iterator[None]:
        try:
            yield
        except (CheckpointError, RunFolderError):
            raise
        except Exception as error:  # every file system of fsspec raises errors of its own library
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise CheckpointError(
                f"checkpoint.mirror {self._url!r} cannot be {done} ({reason}); check the URL, the "
                "network and the credentials, and give the same command again"
            ) from error


def mirror_of(config: RunConfig) -> Mirror | None:
    """Return the mirror that a configuration asks for; raises ConfigError like Mirror."""
    url = config.checkpoint.mirror
    if url is None:
        return None
    return Mirror(url, config.run_dir, config.checkpoint.keep)


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    from fsspec.core import url_to_fs

    try:
        files, root = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"checkpoint.mirror {url!r} cannot be used ({' '.join(str(error).split())}); install "
            "the package of its file system, for instance s3fs or gcsfs, or correct the URL"
        ) from error
    return files, str(root).rstrip("/")


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
