"""Supervised rows for `rlsys sft`: the same records that reinforcement learning trains on.

A row is a `Sample` whose sampled segments have advantage 1. A pair is a `Sample` with two branches
after one prompt: advantage 1 on the chosen response, -1 on the rejected one. The rows of step n
depend only on the seed and on n, so a resumed run continues with the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsys.config import (
    ArithmeticTraces,
    CountdownTraces,
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
"""Share of arithmetic rows with a cut thought. They teach the model to answer from a cut."""
CUT_RIGHT_SHARE: Final = 0.7
"""Share of these rows with the right answer. The others answer with the total at the cut."""

_CHARACTERS: Final = "0123456789+-=;?}"
"""All characters of arithmetic rows, except the texts that are one token each."""
_PROBE: Final = "3+8=11;11-2=9?9-12=-3}"


class SupervisedRows(Protocol):
    """Rows for any step of a supervised run."""

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the `count` rows of step `step` (from 0); the same call returns the same rows."""
        ...


def supervised_rows(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> SupervisedRows:
    """Return the rows that `config.data` describes.

    Raises:
        DataError: a file is missing or malformed, or all its rows are too long.
        ModelError: the rows are arithmetic, but the tokenizer has no token for each character.
    """
    match config.data:
        case ArithmeticTraces() as data:
            return ArithmeticRows(data, tokenizer)
        case CountdownTraces() as data:
            from rlsys.sft.countdown_rows import CountdownRows  # it imports `row` from this module

            return CountdownRows(data, tokenizer)
        case DialogueTraces() as data:
            from rlsys.sft.dialogues import DialogueRows  # it imports `row` from this module

            return DialogueRows(data, tokenizer)
        case SupervisedFile() | PreferenceFile() as data:
            return FileRows(data, tokenizer, config.seed)


class ArithmeticRows:
    """Traces of training problems, token by token in the format of the anytime environment."""

    def __init__(self, data: ArithmeticTraces, tokenizer: PreTrainedTokenizerBase) -> None:
        self._difficulty = data.difficulty
        self._habits = data.habits
        self._seed = data.seed
        # A table lookup and not the tokenizer: rows are made while the learner waits for them.
        self._ids_of_character = _character_table(tokenizer)
        example = "3+8-2"
        self._prompt_start, self._prompt_end = _split_prompt(tokenizer, self._ids(example), example)
        think = ThinkTokens.resolve(tokenizer, TINY_ENVIRONMENT)
        self._header = think.header_ids
        self._end = think.end.token_ids
        self._forced_end = think.cut_ids
        self._eos = np.array([tokenizer.eos_token_id], np.int32)

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the rows of `step`. All problems are training problems, none is held out."""
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
            # Characters are tokens, so a cut in the text is also a cut in the token ids.
            cut = int(rng.integers(1, len(thought) + 1))
            right = rng.random() < CUT_RIGHT_SHARE
            answer = trace.problem.answer if right else trace.guess_at(cut)
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
    """Prompts and responses, or pairs of responses, from files, shuffled again in every epoch."""

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
        """Number of rows that are longer than `max_tokens`."""
        if not self._rows:
            files = ", ".join(data.path)
            raise DataError(
                f"all {self.dropped} rows of {files} are longer than data.max_tokens "
                f"{data.max_tokens}; raise it"
                if rows
                else f"{files} is empty; name a file with at least one row under data.path"
            )

    def __len__(self) -> int:
        """Rows in one epoch."""
        return len(self._rows)

    def samples(self, step: int, count: int) -> list[Sample]:
        """Return the rows of `step`: `count` rows from row `step * count` of the shuffled stream.

        The stream is endless: after each epoch the next one follows in another order.
        """
        indices = [divmod(p, len(self._rows)) for p in range(step * count, (step + 1) * count)]
        orders = {epoch: self._order(epoch) for epoch in {epoch for epoch, _ in indices}}
        return [self._rows[orders[epoch][index]] for epoch, index in indices]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))


def row(prompt: Tokens, *responses: tuple[Kind, Tokens]) -> Sample:
    """Return a supervised row: prompt and responses, with advantage 1 on every sampled token."""
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
                # Nothing was sampled. A Segment requires these values; the NLL loss ignores them.
                logprobs=np.zeros(count, np.float32) if kind.sampled else None,
                versions=(0, 0) if kind.sampled else None,
            )
        )
        advantages.append(np.ones(count, np.float32) if kind.sampled else None)
    return Sample(segments=tuple(segments), advantages=tuple(advantages))


def pair(prompt: Tokens, chosen: Tokens, rejected: Tokens) -> Sample:
    """Return a pair: two answers after one prompt, advantage 1 for chosen and -1 for rejected."""
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

    # Strip as for the problems of a run, so that both give the same prompt.
    prompt_ids = renderer.render(Problem(id="", text=prompt.strip(), answer=""))
    if rejected is None:
        return row(prompt_ids, (Kind.ANSWER, ids(response)))
    return pair(prompt_ids, ids(response), ids(rejected))


def _longest_sequence(sample: Sample) -> int:
    """Return the tokens of the prompt and of the longest response after it."""
    prompt, *responses = sample.segments
    return len(prompt.token_ids) + max(len(response.token_ids) for response in responses)


def _character_table(tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Return the token ids of the characters of arithmetic rows, [128], by ASCII code."""
    table = np.zeros(128, np.int32)
    ids, probe = encode(tokenizer, _CHARACTERS), encode(tokenizer, _PROBE)
    if len(ids) == len(_CHARACTERS):
        table[np.frombuffer(_CHARACTERS.encode(), np.uint8)] = ids
    # A tokenizer may have a token for every character and still merge some of them. The probe is a
    # typical text, in which such merges would occur.
    if probe != table[np.frombuffer(_PROBE.encode(), np.uint8)].tolist():
        raise ModelError(
            f"data.source 'arithmetic' needs one token per character, but tokenizer "
            f"{tokenizer.name_or_path!r} encodes {_PROBE!r} as {len(probe)} tokens; "
            "use the tiny model"
        )
    return table


def _split_prompt(
    tokenizer: PreTrainedTokenizerBase, problem: Tokens, text: str
) -> tuple[Tokens, Tokens]:
    """Return the ids before and after the problem in every prompt, found in a rendered example."""
    ids = PromptRenderer(tokenizer, PromptConfig()).render(Problem(id="", text=text, answer=""))
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(problem))
    (starts,) = np.nonzero((windows == problem).all(axis=1))
    start = int(starts[-1])
    return ids[:start], ids[start + len(problem) :]
