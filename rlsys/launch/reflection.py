"""`rlsys reflection`: sample and label thoughts, make training rows, evaluate the detector.

Each step starts only the engines that it needs, because a large teacher may need all GPUs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

import ray

from actors.grading import GradingActor
from actors.pools import GradingPool
from rlsys.algorithms.reflection import count_reflections, reflection_threshold
from rlsys.config import GenerationConfig
from rlsys.config.reflection import (
    ArithmeticTeacherConfig,
    CountdownTeacherConfig,
    EndpointTeacher,
    EngineTeacher,
    ReflectionConfig,
)
from rlsys.errors import EngineError
from rlsys.launch.engines import frozen_engines
from rlsys.launch.preflight import check_local_gpus
from rlsys.launch.resources import SERVICE_CPUS, numbered_bundles
from rlsys.launch.room import Bundle
from rlsys.launch.session import ray_session, run
from rlsys.reflection.detector import ReflectionDetector
from rlsys.reflection.labelling import arithmetic, countdown
from rlsys.reflection.labelling.chat import EndpointChat, EngineChat
from rlsys.reflection.labelling.evaluation import DetectorEvaluation, evaluate_detector
from rlsys.reflection.labelling.journal import Journal
from rlsys.reflection.labelling.responses import (
    Policy,
    Thought,
    read_thoughts,
    sample_thoughts,
    thought_id,
)
from rlsys.reflection.labelling.rows import (
    AnsweredThought,
    LabelledThought,
    label_counts,
    labelled_thoughts,
    pair_rows,
    path_rows,
    reflection_rows,
)
from rlsys.reflection.labelling.teacher import (
    Labelling,
    ModelTeacher,
    ReadingTeacher,
    Teacher,
    label_thoughts,
    read_labels_file,
)
from rlsys.reflection.labelling.workspace import Workspace, require
from rlsys.reflection.prompts import layout_named
from rlsys.tokenization.model_folder import check_model
from rlsys.tokenization.tokenizer import load_tokenizer

Print = Callable[[str], None]
"""Shows one sentence to the user."""

ENGINE_TEACHER_THOUGHTS: Final = 64
"""Thoughts that are labelled at once by an EngineTeacher; its engines batch the requests."""
GIVE_UP_AFTER: Final = 3
"""Labelling ends after this number times the thoughts at once fail in a row: if the teacher is
gone, each of the thoughts in progress fails once, and that must happen several times."""


def write_labels(config: ReflectionConfig, show: Print) -> None:
    """Sample thoughts for the training problems and label their chunks. A restart continues both.

    Raises:
        ResourceError: the endpoint of the teacher does not answer. This is checked before sampling.
        EngineError: the teacher stopped answering, or did not label some thoughts. The labels so
            far are kept.
    """
    place = _load(config)
    _check_teacher(config)
    state = _labelled(place, held_out=False, show=show)
    if state.failed:
        raise EngineError(
            f"{state.failed:,} thoughts have no labels ({state.last_error}); run the same command "
            "again to label them"
        )


def write_rows(config: ReflectionConfig, show: Print) -> None:
    """Write the training rows for all labelled thoughts."""
    place = _load(config)
    labelled = list(_read(place, held_out=False))
    show(_sentence("labelled", label_counts(labelled)))
    show(_threshold(place, [known.thought for known in labelled]))
    folder = config.run_dir / "rows"
    folder.mkdir(exist_ok=True)
    layout = layout_named(config.detector.layout)
    made = reflection_rows(labelled, layout, unanswered=config.rows.unanswered)
    _write(folder / "reflection.jsonl", made, show)
    if not config.rows.paths:
        return
    with ray_session(_policy_bundles(config)):
        paths = run(_answer_paths(place, labelled))
    most = config.rows.per_problem
    _write(folder / "paths.jsonl", path_rows(paths, place.decode_whole, per_problem=most), show)
    _write(folder / "pairs.jsonl", pair_rows(paths, place.decode_whole, per_problem=most), show)


def _threshold(place: Workspace, thoughts: Sequence[Thought]) -> str:
    """Return a sentence with the threshold of the reflection reward for this policy."""
    # Thoughts that reached the token limit are incomplete: their rate of reflections may differ.
    whole = [t.token_ids.tolist() for t in thoughts if t.closed and len(t.token_ids)]
    if not whole:
        return "every thought reached the token limit; raise environment.budgets"
    counting = place.config.environment.reflections
    counts = [
        count_reflections(place.decode(ids), counting.mode, words=counting.words, gap=counting.gap)
        for ids in whole
    ]
    tokens = reflection_threshold(counts, [len(ids) for ids in whole])
    return f"algorithm.reflection.tokens_per_reflection of this policy is {tokens:.1f}"


def evaluate_reflection_model(config: ReflectionConfig, show: Print) -> DetectorEvaluation:
    """Evaluate the reflection model on thoughts for held-out problems."""
    place = _load(config)
    limit = check_model(
        config.reflection_model, on_cpu=not config.reflection_generation.gpus_per_engine
    )
    wanted = _policy_bundles(config) + _engine_bundles(
        "reflection model", config.reflection_generation
    )
    check_local_gpus(wanted)
    _check_teacher(config)
    _labelled(place, held_out=True, show=show)
    labelled = list(_read(place, held_out=True))
    with ray_session(wanted):
        evaluation = run(_evaluate(place, labelled, limit))
    path = place.folder(held_out=True) / "result.json"
    path.write_text(json.dumps(evaluation.to_dict(), indent=1), "utf-8")
    show(f"wrote {path}")
    return evaluation


def _load(config: ReflectionConfig) -> Workspace:
    limit = check_model(config.policy, on_cpu=not config.generation.gpus_per_engine)
    check_local_gpus(_policy_bundles(config))
    return Workspace.load(config, limit)


def _check_teacher(config: ReflectionConfig) -> None:
    """Raise a UserError if the teacher cannot work, before thoughts are sampled for it."""
    match config.teacher:
        case EndpointTeacher() as teacher:
            run(_check_endpoint(teacher))
        case EngineTeacher() as teacher:
            check_model(teacher.model, on_cpu=not teacher.generation.gpus_per_engine)
            check_local_gpus(_engine_bundles("teacher", teacher.generation))
        case ArithmeticTeacherConfig() | CountdownTeacherConfig():
            pass


async def _check_endpoint(teacher: EndpointTeacher) -> None:
    chat = EndpointChat(teacher)
    try:
        await chat.check()
    finally:
        await chat.close()


def _labelled(place: Workspace, *, held_out: bool, show: Print) -> Labelling:
    """Sample and label all thoughts that are missing; return the counts of the labelling."""
    config, folder = place.config, place.folder(held_out=held_out)
    samples, cut_share = config.samples, config.cut_share
    if held_out:
        # The evaluation uses whole thoughts only, as they occur in training runs.
        samples, cut_share = config.measure.samples, 0.0
    place.claim()
    thoughts = Journal(folder / "thoughts.jsonl")
    problems = place.problems(held_out=held_out, tell=show)
    missing = [p for p in problems if thought_id(p, samples - 1) not in thoughts]
    if missing:
        show(f"sampling {len(missing) * samples:,} thoughts; {len(thoughts):,} are in the file")

        async def sample() -> None:
            async with _policy(place) as policy:
                await sample_thoughts(policy, missing, samples, thoughts, cut_share)

        # The session of the policy ends before that of the teacher starts: each may need all GPUs.
        with ray_session(_policy_bundles(config)):
            run(sample())
    return _run_teacher(place, folder, show)


def _run_teacher(place: Workspace, folder: Path, show: Print) -> Labelling:
    """Label the thoughts of a folder that have no labels yet."""
    teacher = place.config.teacher
    at_once = (
        teacher.concurrency if isinstance(teacher, EndpointTeacher) else ENGINE_TEACHER_THOUGHTS
    )
    session = (
        ray_session(_engine_bundles("teacher", teacher.generation))
        if isinstance(teacher, EngineTeacher)
        else nullcontext()
    )

    async def work() -> Labelling:
        async with _open_teacher(place) as opened:
            return await label_thoughts(
                opened,
                read_thoughts(folder / "thoughts.jsonl"),
                place.chunk,
                Journal(folder / "labels.jsonl"),
                at_once=at_once,
                give_up_after=GIVE_UP_AFTER * at_once,
            )

    with session:
        state = run(work())
    counts = {"thoughts": state.labelled, "labelled before": state.skipped}
    show(_sentence("labelled", counts | {"failed": state.failed} | state.bad))
    return state


@asynccontextmanager
async def _open_teacher(place: Workspace) -> AsyncIterator[Teacher]:
    match place.config.teacher:
        case ArithmeticTeacherConfig():
            yield ReadingTeacher(arithmetic.result_chunks)
        case CountdownTeacherConfig():
            yield ReadingTeacher(countdown.result_chunks)
        case EndpointTeacher() as config:
            chat = EndpointChat(config)
            try:
                yield ModelTeacher(chat, gold=config.gold)
            finally:
                await chat.close()
        case EngineTeacher(model=model, generation=generation, gold=gold):
            limit = check_model(model, on_cpu=not generation.gpus_per_engine)
            seed = place.config.seed
            async with frozen_engines(model, generation, limit, seed) as engines:
                tokenizer = load_tokenizer(model.path)
                yield ModelTeacher(EngineChat(engines, tokenizer, max_length=limit), gold=gold)


def _read(place: Workspace, *, held_out: bool) -> Iterable[LabelledThought]:
    folder = place.folder(held_out=held_out)
    labels = read_labels_file(require(folder / "labels.jsonl", "label"))
    return labelled_thoughts(read_thoughts(folder / "thoughts.jsonl"), labels, place.chunk)


async def _answer_paths(place: Workspace, labelled: list[LabelledThought]) -> list[AnsweredThought]:
    """Answer every labelled thought twice: after its truncated path and after the whole path."""
    thoughts = [item.thought for item in labelled]
    async with _policy(place) as policy:
        truncated = await policy.answer(thoughts, [item.known_tokens for item in labelled])
        whole = await policy.answer(thoughts, [len(t.token_ids) for t in thoughts])
    return [AnsweredThought(*answered) for answered in zip(labelled, truncated, whole, strict=True)]


async def _evaluate(
    place: Workspace, labelled: list[LabelledThought], limit: int
) -> DetectorEvaluation:
    config = place.config
    async with AsyncExitStack() as stack:
        policy = await stack.enter_async_context(_policy(place))
        reflection_model = await stack.enter_async_context(
            frozen_engines(
                config.reflection_model, config.reflection_generation, limit, config.seed
            )
        )
        detector = ReflectionDetector(
            reflection_model,
            load_tokenizer(config.reflection_model.path),
            config.detector,
            max_length=limit,
            policy_texts=place.token_texts,
        )
        return await evaluate_detector(policy, detector, labelled, config.measure.ratios)


@asynccontextmanager
async def _policy(place: Workspace) -> AsyncIterator[Policy]:
    """Start the engines of the policy, and grading actors for its answers."""
    config = place.config
    actor = ray.remote(GradingActor).options(num_cpus=SERVICE_CPUS)
    graders = [actor.remote(config.grading) for _ in range(config.grading.actors)]
    grading = GradingPool(
        graders, max_characters=config.grading.max_characters, policy=config.grading.policy
    )
    async with frozen_engines(
        config.policy, config.generation, place.longest_sequence, config.seed
    ) as engines:
        yield place.policy(engines, grading)


def _policy_bundles(config: ReflectionConfig) -> list[Bundle]:
    graders = numbered_bundles("grading actor", config.grading.actors, SERVICE_CPUS)
    return _engine_bundles("policy", config.generation) + graders


def _engine_bundles(name: str, generation: GenerationConfig) -> list[Bundle]:
    return numbered_bundles(
        f"{name} engine",
        generation.engines,
        generation.cpus_per_engine,
        generation.gpus_per_engine,
    )


def _write(path: Path, made: Iterable[Mapping[str, str]], show: Print) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in made]
    path.write_text("".join(lines), encoding="utf-8")
    show(f"wrote {len(lines):,} rows to {path}")


def _sentence(verb: str, counts: Mapping[str, int]) -> str:
    return f"{verb}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
