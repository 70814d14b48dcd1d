"""Supervised rows for `rlsys sft`: the same records that reinforcement learning trains on.

A row is a `Sample` whose sampled segments have advantage 1. A pair is a `Sample` of two branches
from one prompt: advantage 1 on the response to prefer, -1 on the other one. Which rows step n gets
depends on the seed and n alone, so a resumed run goes on with the rows it would have had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsys.config import (
    ArithmeticTraces,
    DialogueTraces,
    PreferenceFile,
    PromptConfig,
    SftConfig,
    SupervisedFile,
)
from rlsys.data.arithmetic import arithmetic_problem, draw_texts
from rlsys.data.problems import read_rows
from rlsys.errors import DataError, ModelError
from rlsys.sft.tiny_model import TINY_ENVIRONMENT
from rlsys.sft.traces import draw_trace
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import encode
from rlsys.types import NO_PARENT, Floats, Kind, Problem, Sample, Segment, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT_SHARE: Final = 0.3
"""Arithmetic rows whose thought is cut, so that answering from a cut thought is known at all."""
CUT_RIGHT_SHARE: Final = 0.7
"""Of these, rows that answer right all the same; the others say where the chain stood."""

_CHARACTERS: Final = "0123456789+-=;?}"
"""All that arithmetic rows are written in, besides the texts that are one token each."""
_PROBE: Final = "3+8=11;11-2=9?9-12=-3}"


class SupervisedRows(Protocol):
    """Rows for any step of a supervised run."""

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the `count` rows of step `step` (from 0); the same call returns the same rows."""
        ...


def supervised_rows(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> SupervisedRows:
    """The rows that `config.data` describes.

    Raises:
        DataError: a file is missing, malformed, or holds no row short enough.
        ModelError: arithmetic rows are asked of a tokenizer that does not write single characters.
    """
    match config.data:
        case ArithmeticTraces() as data:
            return ArithmeticRows(data, tokenizer)
        case DialogueTraces() as data:
            from rlsys.sft.dialogues import DialogueRows  # which makes its rows with `row`

            return DialogueRows(data, tokenizer)
        case SupervisedFile() | PreferenceFile() as data:
            return FileRows(data, tokenizer, config.seed)


class ArithmeticRows:
    """Traces of training problems, laid out token by token as the anytime environment would."""

    def __init__(self, data: ArithmeticTraces, tokenizer: PreTrainedTokenizerBase) -> None:
        self._difficulty = data.difficulty
        self._habits = data.habits
        self._seed = data.seed
        self._ids_of_character = _character_table(tokenizer)
        example = "3+8-2"
        self._prompt_start, self._prompt_end = _split_prompt(tokenizer, self._ids(example), example)
        think = ThinkTokens.resolve(tokenizer, TINY_ENVIRONMENT)
        self._header = think.header_ids
        self._end = np.array([think.think_end_id], np.int32)
        self._forced_end = np.concatenate([think.closing_ids, self._end, self._header])
        self._eos = np.array([tokenizer.eos_token_id], np.int32)

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the rows of `step`, drawn from the training side of the problem split."""
        rng = np.random.default_rng([self._seed, step])
        texts = draw_texts(rng, self._difficulty, held_out=False, size=count)
        return [
            self._sample(arithmetic_problem(text, f"{step}-{i}"), rng)
            for i, text in enumerate(texts)
        ]

    def _sample(self, problem: Problem, rng: np.random.Generator) -> Sample:
        trace = draw_trace(problem, rng, self._habits)
        thought, forced, answer = self._ids(trace.thought), self._header, trace.answer
        if len(thought) and rng.random() < CUT_SHARE:
            cut = int(rng.integers(1, len(thought) + 1))
            right = rng.random() < CUT_RIGHT_SHARE
            answer = trace.problem.answer if right else trace.stands_at(cut)
            thought, forced = thought[:cut], self._forced_end
        else:
            thought = np.concatenate([thought, self._end])
        prompt = (self._prompt_start, self._ids(trace.problem.text), self._prompt_end)
        return row(
            np.concatenate(prompt),
            (Kind.THOUGHT, thought),
            (Kind.FORCED, forced),
            (Kind.ANSWER, np.concatenate([self._ids(answer + "}"), self._eos])),
        )

    def _ids(self, text: str) -> Tokens:
        return self._ids_of_character[np.frombuffer(text.encode(), np.uint8)]


class FileRows:
    """Prompts and responses, or pairs of responses, from files, shuffled anew every epoch."""

    def __init__(
        self,
        data: SupervisedFile | PreferenceFile,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
    ) -> None:
        self._seed = seed
        renderer = PromptRenderer(tokenizer, data.prompt)
        rows = [_file_row(renderer, tokenizer, *texts) for texts in read_rows(data)]
        self._rows = [r for r in rows if _longest_sequence(r) <= data.max_tokens]
        self.dropped = len(rows) - len(self._rows)
        """Rows longer than `max_tokens`."""
        if not self._rows:
            files = ", ".join(data.path)
            raise DataError(
                f"all {self.dropped} rows of {files} are longer than data.max_tokens "
                f"{data.max_tokens}; raise it"
                if rows
                else f"{files} is empty; name a file with at least one row under data.path"
            )

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the rows of `step`: rows `step * count` and on of the endless shuffled stream."""
        places = [divmod(p, len(self._rows)) for p in range(step * count, (step + 1) * count)]
        orders = {epoch: self._order(epoch) for epoch in {epoch for epoch, _ in places}}
        return [self._rows[orders[epoch][place]] for epoch, place in places]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))


def row(prompt: Tokens, *responses: tuple[Kind, Tokens]) -> Sample:
    """A supervised row: the prompt and what follows it, advantage 1 on every sampled token."""
    segments = [Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=prompt)]
    advantages: list[Floats | None] = [None]
    for kind, token_ids in responses:
        count = len(token_ids)
        segments.append(
            Segment(
                parent=len(segments) - 1,
                cut=len(segments[-1].token_ids),
                kind=kind,
                token_ids=token_ids,
                logprobs=np.zeros(count, np.float32) if kind.sampled else None,
                versions=(0, 0) if kind.sampled else None,
            )
        )
        advantages.append(np.ones(count, np.float32) if kind.sampled else None)
    return Sample(segments=tuple(segments), advantages=tuple(advantages))


def pair(prompt: Tokens, chosen: Tokens, rejected: Tokens) -> Sample:
    """A preference: two answers after one prompt, advantage 1 on the chosen, -1 on the other."""
    good, bad = row(prompt, (Kind.ANSWER, chosen)), row(prompt, (Kind.ANSWER, rejected))
    return Sample(
        segments=(*good.segments, bad.segments[1]),
        advantages=(*good.advantages, -np.ones(len(rejected), np.float32)),
    )


def _file_row(
    renderer: PromptRenderer,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    response: str,
    rejected: str | None = None,
) -> Sample:
    def ids(text: str) -> Tokens:
        return np.array([*encode(tokenizer, text), renderer.end_of_turn], np.int32)

    # Stripped like the problems of a run, so that both are the same prompt.
    prompt_ids = renderer.render(Problem(id="", text=prompt.strip(), answer=""))
    if rejected is None:
        return row(prompt_ids, (Kind.ANSWER, ids(response)))
    return pair(prompt_ids, ids(response), ids(rejected))


def _longest_sequence(sample: Sample) -> int:
    """Tokens of the prompt and the longer one of the responses that follow it."""
    prompt, *responses = sample.segments
    return len(prompt.token_ids) + max(len(response.token_ids) for response in responses)


def _character_table(tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """[128] token id of every character of the arithmetic rows, by its ASCII code."""
    table = np.zeros(128, np.int32)
    ids, probe = encode(tokenizer, _CHARACTERS), encode(tokenizer, _PROBE)
    if len(ids) == len(_CHARACTERS):
        table[np.frombuffer(_CHARACTERS.encode(), np.uint8)] = ids
    if probe != table[np.frombuffer(_PROBE.encode(), np.uint8)].tolist():
        raise ModelError(
            f"data.source 'arithmetic' needs one token per character, but tokenizer "
            f"{tokenizer.name_or_path!r} writes {_PROBE!r} in {len(probe)} tokens; "
            "use the tiny model"
        )
    return table


def _split_prompt(
    tokenizer: PreTrainedTokenizerBase, problem: Tokens, text: str
) -> tuple[Tokens, Tokens]:
    """The ids around the problem in every prompt, found in a rendered example."""
    ids = PromptRenderer(tokenizer, PromptConfig()).render(Problem(id="", text=text, answer=""))
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(problem))
    (places,) = np.nonzero((windows == problem).all(axis=1))
    start = int(places[-1])
    return ids[:start], ids[start + len(problem) :]
