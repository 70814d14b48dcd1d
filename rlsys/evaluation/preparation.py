"""What an evaluation works with, loaded and checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsys.config import ModelConfig
from rlsys.config.evaluation_sets import SetsConfig
from rlsys.data.problems import load_problem_set
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.errors import ModelError
from rlsys.tokenization.model_folder import check_model, resolve_model_path
from rlsys.tokenization.prompts import PromptRenderer, filter_prompts
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.training.run_folder import CHECKPOINTS, EXPORT, FINISHED, last_checkpoint
from rlsys.types import Generator, Grader, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


PART_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tokenizer, prompts and problems of an evaluation, with consistent lengths."""

    config: SetsConfig
    """With the folder of the model in the place of a run directory."""
    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer
    think: ThinkTokens
    longest_sequence: int
    """Most tokens of a prompt, a thought, the forced text and an answer together."""
    problems: Mapping[str, Sequence[Problem]]
    """The problems of every set."""
    weights: str
    """See weights_digest."""
    notes: Sequence[str]
    """A sentence about every set with its size, and about what was left out."""

    def environment(self, generator: Generator, grader: Grader) -> AnytimeEnvironment:
        """Return the environment that samples one thought and its answers."""

        def decode(ids: Sequence[int]) -> str:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

        return AnytimeEnvironment(
            sampler=ThoughtSampler(
                think=self.think,
                decode=decode,
                temperature=self.config.temperature,
                top_p=self.config.top_p,
                top_k=self.config.top_k,
                generator=generator,
                grader=grader,
            ),
            renderer=self.renderer,
            budgets=self.config.environment.grid,
            answers=1,
            answer_tokens=self.config.environment.answer_tokens,
            group_size=1,
            seed=self.config.seed,
        )


def prepare(config: SetsConfig) -> Prepared:
    """Load what `config` names.

    Raises:
        ModelError: no such model, a run that is not finished, a tokenizer without the needed
            tokens, or too little room for a prompt.
        DataError: problems are missing, empty or malformed, or every prompt of a set is too long.
    """
    config = config.model_copy(update={"model": exported(config.model)})
    on_cpu = config.endpoint is None and not config.generation.gpus_per_engine
    limit = check_model(config.model, on_cpu=on_cpu)
    tokenizer = load_tokenizer(config.model.path)
    environment = config.environment
    think = ThinkTokens.resolve(tokenizer, environment)
    response = environment.longest_thought + len(think.cut_ids) + environment.answer_tokens
    if limit <= response:
        raise ModelError(
            f"a thought of {environment.longest_thought} tokens, the closing and an answer need "
            f"{response} tokens, but model.path {config.model.path!r} takes {limit} in all; lower "
            f"{environment.length_keys}"
        )
    prompt_tokens = min(config.data.prompt.max_tokens, limit - response)
    renderer = PromptRenderer(tokenizer, config.data.prompt)
    problems, notes = _problems(config, renderer, prompt_tokens)
    return Prepared(
        config=config,
        tokenizer=tokenizer,
        renderer=renderer,
        think=think,
        longest_sequence=prompt_tokens + response,
        problems=problems,
        weights="" if config.endpoint else weights_digest(config.model.path),
        notes=notes,
    )


def _problems(
    config: SetsConfig, renderer: PromptRenderer, prompt_tokens: int
) -> tuple[dict[str, list[Problem]], list[str]]:
    problems, notes = {}, []
    for name, source in config.data.sets.items():
        loaded = load_problem_set(source, f"data.sets.{name}")
        problems[name], too_long = filter_prompts(loaded.problems, renderer, prompt_tokens)
        note = f"{name}: {len(problems[name]):,} problems, {source.samples} samples of each"
        if loaded.unanswered:
            note += f"; {loaded.unanswered:,} rows are skipped because they have no answer"
        if too_long:
            note += f"; {too_long:,} are dropped because their prompt is too long"
        notes.append(note)
    return problems, notes


def weights_digest(path: str) -> str:
    """Return eight hexadecimal digits that change when the weights in a model folder do.

    Three parts of every weight file are read, not all of it: training changes every part. Returns
    "" for a hub name.
    """
    digest, folder = sha256(), Path(resolve_model_path(path))
    files = sorted(f for pattern in ("*.safetensors", "*.bin") for f in folder.glob(pattern))
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            for start in (0, size // 2, max(size - PART_BYTES, 0)):
                stream.seek(start)
                digest.update(stream.read(PART_BYTES))
    return digest.hexdigest()[:8] if files else ""


def exported(model: ModelConfig) -> ModelConfig:
    """Return the model with the export in the place of a run directory.

    Raises ModelError for a run that is not finished: it has no export, or that of an earlier step.
    """
    folder = Path(model.path)
    if (folder / CHECKPOINTS).is_dir() and not (folder / FINISHED).is_file():
        step = last_checkpoint(folder)
        raise ModelError(
            f"model.path {model.path!r} is a run that is not finished, so it has no export of its "
            f"newest weights; give the run's command once more with steps={step or 'N'} to end it "
            "after its newest checkpoint"
        )
    if (folder / EXPORT).is_dir():
        return model.model_copy(update={"path": str(folder / EXPORT)})
    return model
