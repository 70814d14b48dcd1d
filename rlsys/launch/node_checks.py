"""Looks on every node of a run whether the model is there, before any process loads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import ray
from ray.exceptions import RayError

from rlsys.config import RunConfig, SftConfig
from rlsys.errors import ModelError, ResourceError, RlsysError
from rlsys.launch.placement import NodeState, Placement, registered_nodes
from rlsys.tokenization.model_folder import resolve_model_path

T = TypeVar("T")

ANSWER_S: Final = 60.0
"""How long a node may take to start a process and to answer."""


async def check_nodes(config: RunConfig | SftConfig, placement: Placement) -> None:
    """Look for the model on every node of the run.

    Raises:
        ModelError: a node lacks the model folder, or has another one under its path.
        ResourceError: a node does not answer, or cannot import rlsys.
    """
    own = ray.get_runtime_context().get_node_id()
    others = [node for node in registered_nodes() if node.id in placement.nodes and node.id != own]
    model = Path(resolve_model_path(config.model.path))
    if not model.is_dir():  # a name on the hub, which every node loads by itself
        return
    expected = folder_files(model)
    found = await on_nodes(others, folder_files, (model,))
    for node, files in zip(others, found, strict=True):
        if files != expected:
            raise ModelError(difference(config.model.path, node.name, expected, files))


def folder_files(folder: Path) -> dict[str, int]:
    """Return name and size in bytes of every file directly in a model folder."""
    if not folder.is_dir():
        return {}
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}


async def on_nodes(
    nodes: Sequence[NodeState], function: Callable[..., T], arguments: Sequence[object]
) -> list[T]:
    """Call a function on every node at the same time; return the results in the order of `nodes`.

    Raises ResourceError naming a node that does not answer, or that cannot import rlsys.
    """
    return list(await asyncio.gather(*(_on_node(node, function, arguments) for node in nodes)))


async def _on_node(node: NodeState, function: Callable[..., T], arguments: Sequence[object]) -> T:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node.id, soft=False)
    call = ray.remote(num_cpus=0, scheduling_strategy=place, max_retries=0)(function)
    try:
        async with asyncio.timeout(ANSWER_S):
            result: T = await call.remote(*arguments)
            return result
    except TimeoutError:
        raise ResourceError(
            f"node {node.name} did not answer within {ANSWER_S:g} s; look at Ray's logs there, or "
            "take it out of the cluster"
        ) from None
    except RayError as error:
        if isinstance(error, RlsysError):
            raise
        cause = (str(error).strip().splitlines() or ["no message"])[-1]
        raise ResourceError(
            f"node {node.name} cannot run a task of this run ({cause}); install the same rlsys and "
            "the same packages there"
        ) from error


def difference(path: str, node: str, expected: dict[str, int], files: dict[str, int]) -> str:
    """Return what is wrong with the model folder of a node, as one sentence."""
    remedy = "copy the folder there, or put it on a file system that all nodes share"
    if not files:
        return f"model.path {path!r} does not exist on node {node}; {remedy}"
    name = min(name for name, _ in expected.items() ^ files.items())
    return (
        f"model.path {path!r} on node {node} is another folder than here: {name} has "
        f"{files.get(name, 0):,} bytes there and {expected.get(name, 0):,} here; {remedy}"
    )
