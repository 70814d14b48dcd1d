"""The reflection model in use: it finds the position at which to cut each thought of a batch.

Policy and reflection model may have different tokenizers. The thought is chunked on the token ids
of the policy. The reflection model gets only the text of the chunks. The cut is again a number of
policy tokens.
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
"""Returns the text that each token adds; see rlsys.tokenization.decoding.token_texts."""


class SampledThought(NamedTuple):
    """A thought for the reflection model."""

    problem: str
    """The question that the policy was given."""
    token_ids: Tokens
    """The tokens of the policy, without the token that ends the thought."""


@dataclass(frozen=True, slots=True)
class Detection:
    """A thought in N chunks, and the labels that the reflection model gave them."""

    thought: ChunkedThought
    outcome: Outcome
    reading: LabelReading | None = None
    """The labels of the chunks; None unless the outcome is READ."""

    def cut(self, strength: Strength) -> int | None:
        """Return the chunk, counted from 0, after which to cut; None keeps the original."""
        if self.reading is None:
            return None
        return cut_index(self.reading.probabilities_N.tolist(), strength)

    def kept_tokens(self, strength: Strength) -> int | None:
        """Return how many policy tokens to keep, or None to keep the original.

        The number is always smaller than the length of the thought: a cut after the last chunk
        drops the last piece. It is 0 if the thought has only one piece.
        """
        cut = self.cut(strength)
        return None if cut is None else self.thought.kept_tokens(cut)


class Detector(Protocol):
    """Finds the chunks that state an answer: a reflection model, or a fake in a test."""

    async def detect(self, thoughts: Sequence[SampledThought]) -> list[Detection]:
        """Return one detection per thought, in order. No content of a thought raises an error."""
        ...


class ReflectionDetector:
    """Sends thoughts to a reflection model that a generator serves."""

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
        """Check that the tokenizer of the reflection model fits the layout.

        Args:
            generator: serves the reflection model.
            tokenizer: tokenizer of the reflection model.
            config: layout, chunking and number of candidates.
            max_length: most tokens of a prompt and its reply together.
            policy_texts: returns the text that each token of a thought adds.
            until_first: stop each reply at its first `Result`. The strength `first` needs no later
                label. In thoughts that overthink, about half of the labels come later.

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
        # The same few candidates occur at every position, so each token is decoded only once.
        self._text = cache(lambda token: str(tokenizer.decode([token])))

    async def detect(self, thoughts: Sequence[SampledThought]) -> list[Detection]:
        """Return one detection per thought, in order.

        If the detection of a thought fails for any reason, the thought keeps its original, and the
        reason is counted: see Outcome and `detection_counts`.
        """
        return list(await asyncio.gather(*map(self._detect, thoughts)))

    async def _detect(self, sampled: SampledThought) -> Detection:
        thought = chunked(self._policy_texts(sampled.token_ids), self._chunking)
        num_chunks = len(thought.chunks)
        # A thought of white space only has no chunk, so there is nothing to label or to cut.
        if not num_chunks:
            return Detection(thought, Outcome.EMPTY)
        request = self._request(sampled.problem, thought.texts)
        if request is None:
            return Detection(thought, Outcome.TOO_LONG)
        try:
            ((reply,),) = await self._generator.generate([request])
        except EngineError:
            # The reflection model only adds revisions. A run can continue without the revision of
            # one thought, so a dead engine must not end the run.
            return Detection(thought, Outcome.FAILED)
        reading = read_labels(
            self._positions(reply),
            num_chunks,
            think=self._layout.think,
            result=self._layout.result,
            stopped=not self._last.isdisjoint(reply.token_ids[-1:].tolist()),
        )
        # Without any label `cut_index` would return `last_cut`, which the model has not chosen.
        if reading.missing == num_chunks:
            return Detection(thought, Outcome.UNREADABLE)
        return Detection(thought, Outcome.READ, reading)

    def _request(self, problem: str, chunks: Sequence[str]) -> GenerationRequest | None:
        """Return the greedy request for all labels; None if prompt and labels are too long."""
        turn = Problem(id="", text=self._layout.user_turn(problem, chunks), answer="")
        prompt = self._renderer.render(turn)
        # The length of a complete reply and its EOS. The labels do not matter: each is one token.
        reply = len(encode(self._tokenizer, self._layout.reply((), len(chunks)))) + 1
        room = self._max_length - len(prompt)
        if reply > room:
            return None
        return GenerationRequest(
            token_ids=prompt,
            n=1,
            # Twice the length of a complete reply: a reply may contain extra lines, which are
            # skipped, but an endless reply is stopped.
            max_tokens=min(2 * reply, room),
            stop_token_ids=self._stop,
            # Greedy, because the probability of a label is read from the candidates. A sampled
            # reply would add noise and could lose its place in the numbering.
            temperature=0.0,
            seed=None,
            top_logprobs=self._candidates,
        )

    def _positions(self, reply: Completion) -> list[Candidates]:
        """Return (log-prob, text) of the candidates at every generated position."""
        if reply.candidates is None:
            raise EngineError(
                f"engine {reply.engine} returned no candidates, but the request asked for "
                f"{self._candidates} per token"
            )
        ids_LK, logprobs_LK = reply.candidates
        return [
            [(logprob, self._text(token)) for token, logprob in zip(ids, logprobs, strict=True)]
            for ids, logprobs in zip(ids_LK.tolist(), logprobs_LK.tolist(), strict=True)
        ]


def chunked(token_texts: Sequence[str], chunking: ChunkingConfig) -> ChunkedThought:
    """Return the chunks of a thought by the settings `detector.chunking`."""
    return chunk_thought(
        token_texts, separator=chunking.separator, least=chunking.least, most=chunking.most
    )


def check_labels(tokenizer: PreTrainedTokenizerBase, layout: Layout) -> None:
    """Raise ModelError unless each label is a single token inside a reply."""
    for result in (False, True):
        label_tokens(tokenizer, layout, result=result)


def label_tokens(
    tokenizer: PreTrainedTokenizerBase, layout: Layout, *, result: bool
) -> frozenset[int]:
    """Return the tokens that contain the label in a reply.

    Raises ModelError if the label is split into several tokens.
    """
    label = layout.result if result else layout.think
    # Encode a whole reply: the token of a label may depend on the text before it, such as a space.
    ids = encode(tokenizer, layout.reply((0,) if result else (), 1))
    found = frozenset(token for token in ids if label in tokenizer.decode([token]))
    if not found:
        raise ModelError(
            f"tokenizer {tokenizer.name_or_path!r} has no single token for the label {label!r}, so "
            "its probability cannot be read; set detector.layout to 'compact' for the tiny model, "
            "or choose another reflection model"
        )
    return found


def detection_counts(detections: Sequence[Detection]) -> dict[str, int]:
    """Return counts for the log: thoughts by outcome, chunks, missing labels, ignored labels."""
    outcomes = Counter(d.outcome for d in detections)
    readings = [d.reading for d in detections if d.reading is not None]
    return {outcome.value: outcomes[outcome] for outcome in Outcome} | {
        "chunks": sum(len(r.probabilities_N) for r in readings),
        "missing_labels": sum(r.missing for r in readings),
        "extra_labels": sum(r.extra for r in readings),
    }


def first_result(probabilities_N: NDArray[np.float64]) -> int | None:
    """Return the first chunk with a probability of at least SURE, or None."""
    sure = np.flatnonzero(probabilities_N >= SURE)
    return int(sure[0]) if len(sure) else None
