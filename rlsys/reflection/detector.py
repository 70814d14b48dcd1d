"""The reflection model in use: a batch of thoughts in, for each the place where to cut it out.

Policy and reflection model may have different tokenizers. The thought is chunked on the policy's
token ids, only its text is shown to the reflection model, and a cut is a number of the policy's
tokens again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsys.algorithms.reflection import (
    ChunkedThought,
    LabelReading,
    Strength,
    chunk_thought,
    cut_index,
    read_labels,
)
from rlsys.algorithms.reflection.detection import SURE, Candidates
from rlsys.config import ChunkingConfig, DetectorConfig
from rlsys.errors import EngineError, ModelError
from rlsys.reflection.prompts import Layout, layout_named
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.types import Completion, GenerationRequest, Generator, Outcome, Problem, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenTexts = Callable[[Tokens], list[str]]
"""What each token adds to the text; see rlsys.tokenization.decoding.token_texts."""


class SampledThought(NamedTuple):
    """A thought to be read."""

    problem: str
    """The question as the policy was asked it."""
    token_ids: Tokens
    """The policy's tokens, without the one that ends the thought."""


@dataclass(frozen=True, slots=True)
class Detection:
    """A thought in its N chunks, and what the reflection model says of them."""

    thought: ChunkedThought
    outcome: Outcome
    reading: LabelReading | None = None
    """Probability per chunk [N] that it states an answer; None unless READ."""

    def cut(self, strength: Strength) -> int | None:
        """Return the chunk, counted from 0, after which to cut; None keeps the original."""
        if self.reading is None:
            return None
        return cut_index(self.reading.probabilities_N.tolist(), strength)

    def kept_tokens(self, strength: Strength) -> int | None:
        """Return how many of the policy's tokens to keep, or None to keep the original.

        Always fewer than the thought has, even where the cut is after the last chunk: then its
        last piece goes, and a revision has to do without it. 0 if there is only one piece.
        """
        cut = self.cut(strength)
        return None if cut is None else self.thought.kept_tokens(cut)


class Detector(Protocol):
    """Whatever finds the chunks that state an answer."""

    async def detect(self, thoughts: Sequence[SampledThought]) -> list[Detection]:
        """Return one detection per thought, in order. Never raises for what a thought holds."""
        ...


class ReflectionDetector:
    """Asks a reflection model that a generator serves."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: PreTrainedTokenizerBase,
        config: DetectorConfig,
        *,
        max_length: int,
        policy_texts: TokenTexts,
        until_first: bool = False,
    ) -> None:
        """Check that the reflection model can be asked in this layout.

        Args:
            generator: serves the reflection model.
            tokenizer: the reflection model's.
            config: layout, chunking and number of candidates.
            max_length: most tokens of a prompt and its reply together.
            policy_texts: what each token of a thought adds to its text.
            until_first: end each reply at its first `Result`. The strength `first` needs no more,
                and where thoughts overthink, half of the labels are behind it.

        Raises:
            ModelError: a label is not a single token of `tokenizer`, or it has no chat template.
        """
        self._generator = generator
        self._tokenizer = tokenizer
        self._layout = layout_named(config.layout)
        self._renderer = PromptRenderer(tokenizer, self._layout.prompt)
        check_labels(tokenizer, self._layout)
        results = label_tokens(tokenizer, self._layout, result=True)
        self._last = results if until_first else frozenset()
        self._stop = (*eos_ids(tokenizer), *sorted(self._last))
        self._candidates = config.candidates
        self._max_length = max_length
        self._policy_texts = policy_texts
        self._chunking = config.chunking
        self._text = cache(lambda token: str(tokenizer.decode([token])))

    async def detect(self, thoughts: Sequence[SampledThought]) -> list[Detection]:
        """Return one detection per thought, in order.

        A thought that cannot be read, for whatever reason, keeps its original and is counted:
        see Outcome and `detection_counts`.
        """
        return list(await asyncio.gather(*map(self._detect, thoughts)))

    async def _detect(self, sampled: SampledThought) -> Detection:
        thought = chunked(self._policy_texts(sampled.token_ids), self._chunking)
        num_chunks = len(thought.chunks)
        if not num_chunks:
            return Detection(thought, Outcome.EMPTY)
        request = self._request(sampled.problem, thought.texts)
        if request is None:
            return Detection(thought, Outcome.TOO_LONG)
        try:
            ((reply,),) = await self._generator.generate([request])
        except EngineError:
            return Detection(thought, Outcome.FAILED)
        reading = read_labels(
            self._positions(reply),
            num_chunks,
            think=self._layout.think,
            result=self._layout.result,
            stopped=not self._last.isdisjoint(reply.token_ids[-1:].tolist()),
        )
        if reading.missing == num_chunks:
            return Detection(thought, Outcome.UNREADABLE)
        return Detection(thought, Outcome.READ, reading)

    def _request(self, problem: str, chunks: Sequence[str]) -> GenerationRequest | None:
        """The greedy request for all labels, or None if they do not fit."""
        turn = Problem(id="", text=self._layout.user_turn(problem, chunks), answer="")
        prompt = self._renderer.render(turn)
        reply = len(encode(self._tokenizer, self._layout.reply((), len(chunks)))) + 1
        room = self._max_length - len(prompt)
        if reply > room:
            return None
        return GenerationRequest(
            token_ids=prompt,
            n=1,
            # Twice what a clean reply takes: room for lines to skip, none for endless ones.
            max_tokens=min(2 * reply, room),
            stop_token_ids=self._stop,
            temperature=0.0,
            seed=None,
            top_logprobs=self._candidates,
        )

    def _positions(self, reply: Completion) -> list[Candidates]:
        """(log-prob, text) of the candidates at every generated position."""
        if reply.candidates is None:
            raise EngineError(
                f"engine {reply.engine} was asked for {self._candidates} candidates per token and "
                "told of none"
            )
        ids_LK, logprobs_LK = reply.candidates
        return [
            [(logprob, self._text(token)) for token, logprob in zip(ids, logprobs, strict=True)]
            for ids, logprobs in zip(ids_LK.tolist(), logprobs_LK.tolist(), strict=True)
        ]


def chunked(token_texts: Sequence[str], chunking: ChunkingConfig) -> ChunkedThought:
    """Return the chunks of a thought that its tokens spell, under `detector.chunking`."""
    return chunk_thought(
        token_texts, separator=chunking.separator, least=chunking.least, most=chunking.most
    )


def check_labels(tokenizer: PreTrainedTokenizerBase, layout: Layout) -> None:
    """Raise ModelError unless each label is a single token where a reply has it."""
    for result in (False, True):
        label_tokens(tokenizer, layout, result=result)


def label_tokens(
    tokenizer: PreTrainedTokenizerBase, layout: Layout, *, result: bool
) -> frozenset[int]:
    """Return the tokens that hold a label in a reply; ModelError unless it is a single one."""
    label = layout.result if result else layout.think
    ids = encode(tokenizer, layout.reply((0,) if result else (), 1))
    found = frozenset(token for token in ids if label in tokenizer.decode([token]))
    if not found:
        raise ModelError(
            f"tokenizer {tokenizer.name_or_path!r} writes the label {label!r} in {len(ids)} "
            "tokens, so it has no probability to read; set detector.layout to 'compact' for "
            "the tiny model, or choose another reflection model"
        )
    return found


def detection_counts(detections: Sequence[Detection]) -> dict[str, int]:
    """Thoughts by outcome, their chunks, and labels missing or ignored: what a run logs."""
    outcomes = Counter(d.outcome for d in detections)
    readings = [d.reading for d in detections if d.reading is not None]
    return {outcome.value: outcomes[outcome] for outcome in Outcome} | {
        "chunks": sum(len(r.probabilities_N) for r in readings),
        "missing_labels": sum(r.missing for r in readings),
        "extra_labels": sum(r.extra for r in readings),
    }


def first_result(probabilities_N: NDArray[np.float64]) -> int | None:
    """The first chunk that surely states an answer, or None."""
    sure = np.flatnonzero(probabilities_N >= SURE)
    return int(sure[0]) if len(sure) else None
