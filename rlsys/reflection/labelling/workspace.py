"""Inputs and files of `rlsys reflection`, checked and loaded before anything starts.

RUN_DIR/thoughts.json              the settings that the thoughts were sampled with
        thoughts.jsonl             sampled thoughts for training problems
        labels.jsonl               the chunks of each thought that state the right answer
        rows/reflection.jsonl      rows of the reflection model
             paths.jsonl           truncated paths for supervised fine-tuning
             pairs.jsonl           pairs of truncated and whole paths for preference learning
        evaluation/thoughts.jsonl, labels.jsonl, result.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlsys.algorithms.reflection import ChunkedThought
from rlsys.config.reflection import ReflectionConfig
from rlsys.data.problems import load_problem_set
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.errors import ConfigError, DataError, ModelError
from rlsys.reflection.detector import chunked
from rlsys.reflection.labelling.responses import Policy, Thought
from rlsys.tokenization.decoding import token_texts
from rlsys.tokenization.prompts import PromptRenderer, filter_prompts
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Generator, Grader, Problem, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Tokenizer, prompts and problems of the policy, with consistent lengths."""

    config: ReflectionConfig
    tokenizer: PreTrainedTokenizerBase
    """Tokenizer of the policy."""
    renderer: PromptRenderer
    think: ThinkTokens
    prompt_tokens: int
    """Most tokens of a prompt."""
    longest_sequence: int
    """Most tokens of a prompt, a thought, the forced text and an answer together."""

    @classmethod
    def load(cls, config: ReflectionConfig, limit: int) -> Workspace:
        """Load what `config` names. `limit` is the longest sequence of the policy in tokens.

        Raises:
            ModelError: the tokenizer lacks a needed token, or `limit` is too small for a thought.
        """
        tokenizer = load_tokenizer(config.policy.path)
        think = ThinkTokens.resolve(tokenizer, config.environment)
        environment = config.environment
        response = environment.budgets[-1] + len(think.cut_ids) + environment.answer_tokens
        if limit <= response:
            raise ModelError(
                f"a thought of {config.environment.budgets[-1]} tokens, the closing and an answer "
                f"need {response} tokens, but policy.path {config.policy.path!r} has only {limit}, "
                "which leaves none for the prompt; lower environment.budgets"
            )
        prompt_tokens = min(config.data.prompt.max_tokens, limit - response)
        return cls(
            config=config,
            tokenizer=tokenizer,
            renderer=PromptRenderer(tokenizer, config.data.prompt),
            think=think,
            prompt_tokens=prompt_tokens,
            longest_sequence=prompt_tokens + response,
        )

    def problems(
        self, *, held_out: bool, tell: Callable[[str], None] = lambda line: None
    ) -> list[Problem]:
        """Return the problems that have an answer and a prompt that is not too long.

        `tell` takes a line about those that are left out.
        """
        config = self.config
        source, count, key = config.data.train, config.problems, "data.train"
        if held_out:
            source, count, key = config.data.evaluation, config.measure.problems, "data.evaluation"
        loaded = load_problem_set(source, key)
        kept, too_long = filter_prompts(loaded.problems[:count], self.renderer, self.prompt_tokens)
        if loaded.unanswered:
            tell(f"{key}: {loaded.unanswered:,} rows are skipped because they have no answer")
        if too_long:
            tell(f"{key}: {too_long:,} problems are dropped because their prompt is too long")
        return kept

    def policy(self, generator: Generator, grader: Grader) -> Policy:
        """Return the policy that a generator serves."""
        environment = self.config.environment
        return Policy(
            sampler=ThoughtSampler(
                think=self.think,
                decode=self.decode,
                temperature=self.config.generation.temperature,
                generator=generator,
                grader=grader,
            ),
            renderer=self.renderer,
            thought_tokens=environment.budgets[-1],
            answer_tokens=environment.answer_tokens,
            seed=self.config.seed,
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def decode_whole(self, token_ids: Tokens) -> str:
        """Return the text of token ids, with special tokens."""
        return str(self.tokenizer.decode(token_ids.tolist()))

    def token_texts(self, token_ids: Tokens) -> list[str]:
        """Return the text that each policy token adds to a thought."""
        return token_texts(self.tokenizer, token_ids.tolist())

    def chunk(self, thought: Thought) -> ChunkedThought:
        """Return the chunks of a thought, the same chunks that the detector uses."""
        return chunked(self.token_texts(thought.token_ids), self.config.detector.chunking)

    def folder(self, *, held_out: bool) -> Path:
        """Return the folder for thoughts and labels of training or held-out problems."""
        return self.config.run_dir / "evaluation" if held_out else self.config.run_dir

    def claim(self) -> None:
        """Write the settings of thoughts and labels to the run directory, or compare with them.

        Rows from different settings must not be mixed: a restart appends to the same files.

        Raises:
            ConfigError: the directory contains thoughts or labels made with other settings.
        """
        sections = {"seed", "policy", "data", "environment", "samples", "cut_share"}
        wanted = self.config.model_dump(mode="json", include=sections)
        wanted["teacher.gold"] = getattr(self.config.teacher, "gold", True)
        path = self.config.run_dir / "thoughts.json"
        if path.is_file():
            # Files of older versions have no "teacher.gold"; they were labelled with it.
            written = {"teacher.gold": True} | json.loads(path.read_text("utf-8"))
            changed = [key for key in sorted(wanted) if written.get(key) != wanted[key]]
            if changed:
                raise ConfigError(
                    f"run_dir {str(self.config.run_dir)!r} contains thoughts or labels of another "
                    f"{' and '.join(changed)}; restore the old value, or set another run_dir"
                )
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted, indent=1), "utf-8")


def require(path: Path, command: str) -> Path:
    """Return `path`. Raises DataError, with the command that creates it, if it does not exist."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; run rlsys reflection {command} first")
    return path
