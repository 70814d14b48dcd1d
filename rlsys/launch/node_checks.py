"""Looks on every node of a run whether its models are there, before any process loads one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import ray
from ray.exceptions import RayError

from rlsys.config import RunConfig, SftConfig
from rlsys.errors import ModelError, ResourceError, RlsysError
from rlsys.launch.placement import NodeState, Placement, registered_nodes
from rlsys.launch.teacher import TEACHER
from rlsys.tokenization.model_folder import resolve_model_path

T = TypeVar("T")

ANSWER_S: Final = 120.0
"""How long a node may take to start a process and to answer; one that does not reach the hub tries
several times."""


class NeededModel(NamedTuple):
    """A model that processes of a run load."""

    key: str
    """Configuration key of its path, for errors."""
    path: str


def needed_models(config: RunConfig | SftConfig, bundles: Sequence[str]) -> list[NeededModel]:
    """Return the models that a node needs for the bundles with these names.

    Those of engines are needed on every node, because environments load their tokenizers. A teacher
    is loaded by ranks of the learner alone.
    """
    models = [NeededModel("model.path", config.model.path)]
    if isinstance(config, SftConfig):
        return models
    if config.revision is not None:
        models.append(NeededModel("environment.revision.model.path", config.revision.model.path))
    has_rank = any(name.startswith(("learner rank", "shared GPU")) for name in bundles)
    if config.distillation is not None and has_rank:
        models.append(NeededModel(f"{TEACHER}.path", config.distillation.teacher.path))
    return models


async def check_nodes(config: RunConfig | SftConfig, placement: Placement) -> None:
    """Look for every model on the nodes that need it.

    Raises:
        ModelError: a node lacks a model folder, has another one under its path, or cannot get a
            model of the Hugging Face hub.
        ResourceError: a node does not answer, or cannot import rlsys.
    """
    own = own_node()
    others = [node for node in registered_nodes() if node.id in placement.nodes and node.id != own]
    needed = [needed_models(config, placement.nodes[node.id]) for node in others]
    calls = [
        on_node(node, files_of, (models,)) for node, models in zip(others, needed, strict=True)
    ]
    # Once for all nodes: it may ask the hub.
    expected = files_of(list({model for models in needed for model in models}))
    for node, models, found in zip(others, needed, await asyncio.gather(*calls), strict=True):
        for model in models:
            if found[model.key] != expected[model.key]:
                raise ModelError(
                    difference(model, node.name, expected[model.key], found[model.key])
                )


def own_node() -> str:
    """Return Ray's id of this process's node."""
    return str(ray.get_runtime_context().get_node_id())


def files_of(models: Sequence[NeededModel]) -> dict[str, dict[str, int]]:
    """Return the files of every model on this node, by configuration key."""
    return {model.key: model_files(model.path) for model in models}


def model_files(path: str) -> dict[str, int]:
    """Return name and size in bytes of every file directly in a model folder; {} without one.

    Of a model on the Hugging Face hub only config.json is looked at, in the cache of this node or
    else on the hub: it shows that the processes of this node can get the model.
    """
    try:
        folder = Path(resolve_model_path(path))
    except ModelError:
        return {}
    if folder.is_dir():
        return {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(path, "config.json")
        file = cached if isinstance(cached, str) else hf_hub_download(path, "config.json")
    except (OSError, ValueError):  # not reached, not found, or no access
        return {}
    return {"config.json": Path(file).stat().st_size}


def _is_hub_name(path: str) -> bool:
    """True if the path names no folder on this node and may be a model on the hub."""
    try:
        return not Path(resolve_model_path(path)).is_dir()
    except ModelError:
        return False


async def on_nodes(
    nodes: Sequence[NodeState], function: Callable[..., T], arguments: Sequence[object]
) -> list[T]:
    """Call a function on every node at the same time; return the results in the order of `nodes`.

    Raises ResourceError naming a node that does not answer, or that cannot import rlsys.
    """
    return list(await asyncio.gather(*(on_node(node, function, arguments) for node in nodes)))


async def on_node(node: NodeState, function: Callable[..., T], arguments: Sequence[object]) -> T:
    """Call a function on a node; raises as `on_nodes` does."""
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


def difference(
    model: NeededModel, node: str, expected: dict[str, int], files: dict[str, int]
) -> str:
    """Return what is wrong with a model on a node, as one sentence."""
    named = f"{model.key} {model.path!r}"
    remedy = "copy the folder there, or give the absolute path of one that all nodes share"
    if not files and _is_hub_name(model.path):
        return (
            f"{named} is neither in the cache of node {node} nor can that node get it from the "
            "Hugging Face hub; give the node access to the hub, or download the model into a "
            "folder that all nodes share and give its path"
        )
    if not files:
        return f"{named} does not exist on node {node}, or is empty there; {remedy}"
    name = min(name for name, _ in expected.items() ^ files.items())
    return (
        f"{named} on node {node} is another model than here: {name} has {files.get(name, 0):,} "
        f"bytes there and {expected.get(name, 0):,} here; {remedy}"
    )
