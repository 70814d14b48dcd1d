"""What `rlsys reflection` works with, checked and loaded before anything starts, and its files.

RUN_DIR/thoughts.json              the settings behind the thoughts
        thoughts.jsonl             sampled thoughts of training problems
        labels.jsonl               which of their chunks state the right answer
        rows/reflection.jsonl      rows of the reflection model
             paths.jsonl           truncated paths for supervised fine-tuning
             pairs.jsonl           truncated against whole paths
        evaluation/thoughts.jsonl, labels.jsonl, result.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlsys.algorithms.reflection import ChunkedThought
from rlsys.config.reflection import ReflectionConfig
from rlsys.data.problems import load_problems
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
    """The policy's tokenizer, prompts and problems, fitted to each other."""

    config: ReflectionConfig
    tokenizer: PreTrainedTokenizerBase
    """The policy's."""
    renderer: PromptRenderer
    think: ThinkTokens
    prompt_tokens: int
    """Longest prompt."""
    longest_sequence: int
    """Most tokens of a prompt, a thought, what is forced and an answer together."""

    @classmethod
    def load(cls, config: ReflectionConfig, limit: int) -> Workspace:
        """Load what `config` names. `limit` is the longest sequence the policy takes.

        Raises:
            ModelError: a tokenizer without the needed tokens, or thoughts longer than the model.
        """
        tokenizer = load_tokenizer(config.policy.path)
        think = ThinkTokens.resolve(tokenizer, config.environment)
        forced = len(think.closing_ids) + 1 + len(think.header_ids)
        response = config.environment.budgets[-1] + forced + config.environment.answer_tokens
        if limit <= response:
            raise ModelError(
                f"a thought of {config.environment.budgets[-1]} tokens, the closing and an answer "
                f"take {response} of the {limit} tokens that policy.path {config.policy.path!r} "
                "may use, which leaves none for the prompt; lower environment.budgets"
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

    def problems(self, *, held_out: bool) -> list[Problem]:
        """The problems to think about; those whose prompt is too long are left out."""
        config = self.config
        source, count = config.data.train, config.problems
        if held_out:
            source, count = config.data.evaluation, config.measure.problems
        problems = load_problems(source)[:count]
        return filter_prompts(problems, self.renderer, self.prompt_tokens)[0]

    def policy(self, generator: Generator, grader: Grader) -> Policy:
        """The policy behind its engines."""
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
        """Token ids to text, special tokens dropped."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def decode_whole(self, token_ids: Tokens) -> str:
        """Token ids to text, special tokens shown."""
        return str(self.tokenizer.decode(token_ids.tolist()))

    def token_texts(self, token_ids: Tokens) -> list[str]:
        """What each of the policy's tokens adds to a thought."""
        return token_texts(self.tokenizer, token_ids.tolist())

    def chunk(self, thought: Thought) -> ChunkedThought:
        """The chunks of a thought, as the detector sees them."""
        return chunked(self.token_texts(thought.token_ids), self.config.detector.chunking)

    def folder(self, *, held_out: bool) -> Path:
        """Where thoughts and labels of training or held-out problems are."""
        return self.config.run_dir / "evaluation" if held_out else self.config.run_dir

    def claim(self) -> None:
        """Note down what thoughts and labels depend on; a folder with others is refused.

        Raises:
            ConfigError: the folder holds thoughts or labels of other settings.
        """
        sections = {"seed", "policy", "data", "environment", "samples", "cut_share"}
        wanted = self.config.model_dump(mode="json", include=sections)
        wanted["teacher.gold"] = getattr(self.config.teacher, "gold", True)
        path = self.config.run_dir / "thoughts.json"
        if path.is_file():
            there = {"teacher.gold": True} | json.loads(path.read_text("utf-8"))
            changed = [key for key in sorted(wanted) if there.get(key) != wanted[key]]
            if changed:
                raise ConfigError(
                    f"run_dir {str(self.config.run_dir)!r} holds thoughts or labels of another "
                    f"{' and '.join(changed)}; restore that, or name another run_dir"
                )
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted, indent=1), "utf-8")


def require(path: Path, command: str) -> Path:
    """Return `path`. Raises DataError, with the command that makes it, if it is not there."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; run rlsys reflection {command} first")
    return path
