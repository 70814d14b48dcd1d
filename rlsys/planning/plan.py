"""The plan of one run: its processes, the memory of every card, and the seconds of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rlsys.config import EnginesConfig, LearnerConfig, ModelConfig, RunConfig
from rlsys.launch.resources import colocated, transport_of
from rlsys.model_types import check_heads
from rlsys.planning.cards import Card
from rlsys.planning.gradient_checkpointing import checkpointed_layers, rank_room, reserved_parts
from rlsys.planning.layout import HOST, layout
from rlsys.planning.memory import (
    BATCH_TOKENS,
    EngineMemory,
    EngineNeeds,
    LearnerMemory,
    LearnerNeeds,
    engine_memory,
    free_blocks,
    learner_memory,
    total,
)
from rlsys.planning.places import PlacePlan, alike, fill, overfull
from rlsys.planning.shape import ModelShape, read_shape
from rlsys.planning.sync import sync_stage
from rlsys.planning.time import (
    GenerationLoad,
    StepTime,
    TrainingLoad,
    generation_stages,
    training_stages,
)
from rlsys.planning.workload import (
    EpisodeTree,
    LearnerRows,
    Lengths,
    episode_tree,
    fullest_rows,
    learner_rows,
)

REFLECTION_KEY: Final = "environment.revision.generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shapes of the models of a run."""

    policy: ModelShape
    reflection: ModelShape | None = None
    teacher: ModelShape | None = None


def read_shapes(config: RunConfig) -> Shapes:
    """Read the config.json of every model of a run.

    Raises ModelError: a file cannot be used, or learner ranks cannot share the model's heads.
    """
    revision, distillation = config.revision, config.distillation
    ranks = config.learner.sequence_ranks
    policy, teacher = read_shape(config.model.path), None
    check_heads(policy.heads, config.model.path, "model.path", ranks)
    if distillation is not None:
        path = distillation.teacher.path
        teacher = read_shape(path)
        check_heads(teacher.heads, path, "distillation.teacher.path", ranks)
    return Shapes(
        policy=policy,
        reflection=None if revision is None else read_shape(revision.model.path),
        teacher=teacher,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a run needs."""

    shapes: Shapes
    longest: EpisodeTree
    """The longest episode, which decides the memory."""
    expected: EpisodeTree
    """The episode whose seconds are planned."""
    rows: LearnerRows
    """Rows of the longest episodes."""
    learner: LearnerMemory
    checkpointed: int
    """Layers of the policy that are checkpointed: the first ones."""
    backward: Mapping[int, int]
    """Bytes of a backward pass beside the learner's states, by the number of checkpointed layers:
    none, those of this run, all."""
    engine: EngineMemory
    reflection: EngineMemory | None
    places: tuple[PlacePlan, ...]
    time: StepTime | None
    """None where learner or engines run on the CPU, whose speed is not planned."""
    faults: tuple[str, ...]
    """One sentence per thing that does not fit."""

    @property
    def fits(self) -> bool:
        """True if nothing stands against the run."""
        return not self.faults


def plan_run(
    config: RunConfig,
    shapes: Shapes,
    card: Card,
    lengths: Lengths | None = None,
    host_memory: int | None = None,
) -> RunPlan:
    """Plan a run on cards of one kind.

    Args:
        config: the run.
        shapes: of its models.
        card: what every card of the run is.
        lengths: expected lengths, for the seconds; the memory is that of the longest episodes.
        host_memory: bytes of the machine whose CPU runs ranks or engines; None if it is unknown.
    """
    longest, expected = (
        _within_limit(config, shapes.policy, episode_tree(config, wanted))
        for wanted in (Lengths(), lengths or Lengths())
    )
    rows = learner_rows(config, longest)
    memory = (card.memory, host_memory or 0)
    engine = _engine(config, config.model, config.generation, shapes.policy, memory, longest)
    reflection = None
    if config.revision is not None and shapes.reflection is not None:
        wanted = config.revision
        reflection = _engine(
            config, wanted.model, wanted.generation, shapes.reflection, memory, longest
        )
    memories = {"engine": engine.parts}
    if reflection is not None:
        memories["reflection engine"] = reflection.parts
    needs = _learner_needs(config, shapes, longest, fullest_rows(config, longest, rows))
    placed = layout(config)
    room = rank_room(placed, memories, card.memory)
    checkpointed = checkpointed_layers(config, longest, needs, room)
    learner = learner_memory(replace(needs, checkpointed=checkpointed))
    memories["learner rank"] = reserved_parts(learner)
    if config.learner.gpus_per_rank:
        memories["learner rank"] += (free_blocks(learner),)
    capacities = {HOST: host_memory}
    places = tuple(
        fill(place, memories, capacities.get(place.name, card.memory)) for place in placed
    )
    on_cards = config.learner.gpus_per_rank > 0 and config.generation.gpus_per_engine > 0
    return RunPlan(
        shapes=shapes,
        longest=longest,
        expected=expected,
        rows=rows,
        learner=learner,
        checkpointed=checkpointed,
        backward={
            layers: total(learner_memory(replace(needs, checkpointed=layers)).backward)
            for layers in (0, checkpointed, shapes.policy.layers)
        },
        engine=engine,
        reflection=reflection,
        places=places,
        time=_time(config, shapes, card, expected, engine, checkpointed) if on_cards else None,
        faults=(
            *_too_long(config, shapes.policy, longest),
            *_no_cache("generation", engine),
            *(() if reflection is None else _no_cache(REFLECTION_KEY, reflection)),
            *(overfull(group) for group in alike(places) if not group[0].fits),
        ),
    )


def itemsize(model: ModelConfig) -> int:
    """Return the bytes of a number in the model's precision."""
    return 2 if model.dtype == "bfloat16" else 4


def trained_parameters(config: RunConfig, shape: ModelShape) -> int:
    """Return the number of trained parameters: all, or those of the adapters."""
    lora = config.learner.lora
    return shape.parameters if lora is None else shape.lora_parameters(lora)


def _learner_needs(
    config: RunConfig, shapes: Shapes, tree: EpisodeTree, rows: LearnerRows
) -> LearnerNeeds:
    learner, size, shape = config.learner, itemsize(config.model), shapes.policy
    weights = shape.parameters * size
    bucket = min(config.sync.bucket_mib << 20, weights)
    # By CUDA IPC every bucket stays on the card until the same bucket of the next sync replaces it,
    # so all weights are held a second time, and one bucket a third time while it is made.
    on_card = {"nccl": bucket, "ipc": weights + bucket}  # other ways lead through the host
    kept = on_card.get(transport_of(config), 0)
    return LearnerNeeds(
        shape=shape,
        itemsize=size,
        trained=trained_parameters(config, shape),
        zero_stage=learner.zero_stage,
        ranks=learner.ranks,
        rows=rows,
        # Of rows that ranks share, the part of one rank may be trained throughout.
        predicted=min(
            rows.rows_per_pass * rows.row_tokens * tree.sampled // tree.tokens, rows.pass_slots
        ),
        checkpointed=0,  # decided when the memory of the engines is known
        compiled=_compiled(learner),
        logits_chunk=learner.logits_chunk,
        # With adapters the policy without them is the reference.
        reference=config.loss.kl_coefficient > 0 and learner.lora is None,
        kept_for_sync=kept,
        offload=learner.optimizer.offload is not None,
        teacher=_teacher_bytes(config, shapes),
        entropy_trained=config.loss.entropy_coefficient > 0,
    )


def _teacher_bytes(config: RunConfig, shapes: Shapes) -> int:
    if config.distillation is None or shapes.teacher is None:
        return 0
    return shapes.teacher.parameters * itemsize(config.distillation.teacher)


def _compiled(learner: LearnerConfig) -> bool:
    """True if layers are compiled, as learner.worker decides."""
    return learner.compile and learner.gpus_per_rank > 0 and learner.zero_stage < 3


def _engine(
    config: RunConfig,
    model: ModelConfig,
    wanted: EnginesConfig,
    shape: ModelShape,
    memory: tuple[int, int],
    tree: EpisodeTree,
) -> EngineMemory:
    """`memory` is that of a card and that of the host, in bytes."""
    on_gpu = wanted.gpus_per_engine > 0
    eager = not on_gpu if wanted.enforce_eager is None else wanted.enforce_eager
    # The engines of the policy receive its weights; a reflection model is frozen.
    receives = model is config.model and transport_of(config) == "nccl"
    return engine_memory(
        EngineNeeds(
            shape=shape,
            itemsize=itemsize(model),
            tensor_parallel=wanted.tensor_parallel,
            max_sequences=wanted.max_sequences,
            longest=longest_sequence(config, tree),
            cache_bytes=wanted.kv_cache_mib << 20 if wanted.kv_cache_mib else None,
            utilization=wanted.gpu_memory_utilization,
            device_memory=memory[not on_gpu],
            graphs=not eager,
            received=(config.sync.bucket_mib << 20) * receives,
            cache_itemsize=1 if wanted.kv_cache_dtype == "fp8" else itemsize(model),
            batch_tokens=wanted.max_batched_tokens or BATCH_TOKENS,
        )
    )


def longest_sequence(config: RunConfig, tree: EpisodeTree) -> int:
    """Return the most tokens of a sequence, in training or in an evaluation."""
    budgets = config.evaluation_budgets
    beyond = max(budgets[-1] - tree.thought, 0) if budgets else 0
    return tree.longest_path + beyond


def _time(
    config: RunConfig,
    shapes: Shapes,
    card: Card,
    tree: EpisodeTree,
    engine: EngineMemory,
    checkpointed: int,
) -> StepTime:
    batch, learner, generation = config.batch, config.learner, config.generation
    size = itemsize(config.model)
    reference, shape = config.loss.kl_coefficient > 0, shapes.policy
    teacher = 0.0 if shapes.teacher is None else shapes.teacher.parameters / shape.parameters
    return StepTime(
        generation=generation_stages(
            GenerationLoad(
                shape=shape,
                itemsize=size,
                tree=tree,
                episodes=batch.episodes,
                engines=generation.engines,
                tensor_parallel=generation.tensor_parallel,
                max_sequences=generation.max_sequences,
                cache_tokens=engine.cache_tokens,
                graphs=not generation.enforce_eager,
            ),
            card,
        ),
        training=training_stages(
            TrainingLoad(
                shape=shape,
                itemsize=size,
                tree=tree,
                trees=batch.episodes / learner.ranks,
                rows=learner_rows(config, tree),
                trained_parameters=trained_parameters(config, shape),
                ranks=learner.ranks,
                optimizer_steps=batch.optimizer_steps,
                checkpointed=checkpointed,
                compiled=_compiled(learner),
                # Old log-probs are computed only where the weights change within the step.
                extra_forwards=reference + teacher + (batch.optimizer_steps > 1),
                entropy_trained=config.loss.entropy_coefficient > 0,
            ),
            card,
        ),
        sync=sync_stage(shape, size, transport_of(config), card),
        shared=colocated(learner, generation),
    )


def _within_limit(config: RunConfig, shape: ModelShape, tree: EpisodeTree) -> EpisodeTree:
    """Return the tree with a prompt that the model has room for; a run drops longer ones."""
    limit = config.model.max_length or shape.positions
    if limit is None:
        return tree
    room = limit - (longest_sequence(config, tree) - tree.prompt)
    return replace(tree, prompt=max(min(tree.prompt, room), 1))


def _too_long(config: RunConfig, shape: ModelShape, tree: EpisodeTree) -> Iterator[str]:
    limit = config.model.max_length or shape.positions
    needed = longest_sequence(config, tree)
    if limit is not None and needed > limit:
        yield (
            f"an episode needs {needed - tree.prompt:,} tokens after its prompt, and the model "
            f"takes {limit:,} in all; lower {config.environment.length_keys}"
        )


def _no_cache(key: str, engine: EngineMemory) -> Iterator[str]:
    if engine.cache_tokens < engine.longest:
        yield (
            f"the KV cache of an engine of {key} has room for {max(engine.cache_tokens, 0):,} "
            f"tokens, fewer than the {engine.longest:,} of one sequence"
        )
