"""Supervised rows: what an arithmetic row looks like, and rows from files."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scripted
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlsys.config import (
    ArithmeticTraces,
    PreferenceFile,
    PromptConfig,
    SftConfig,
    SupervisedFile,
    TraceHabits,
)
from rlsys.data.arithmetic import is_held_out
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.errors import DataError, ModelError
from rlsys.sft.rows import ArithmeticRows, FileRows, supervised_rows
from rlsys.sft.tiny_model import TINY_ENVIRONMENT, tiny_tokenizer
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import (
    NO_PARENT,
    Completion,
    GenerationRequest,
    GradingRequest,
    Kind,
    Problem,
    Sample,
    Segment,
    Verdict,
)

TOKENIZER = tiny_tokenizer()
THINK_END = TOKENIZER.convert_tokens_to_ids(TINY_ENVIRONMENT.think_end)


def texts(sample: Sample) -> list[str]:
    return [TOKENIZER.decode(s.token_ids.tolist()) for s in sample.segments]


def same_rows(left: Sequence[Sample], right: Sequence[Sample]) -> bool:
    return [texts(s) for s in left] == [texts(s) for s in right]


def test_a_row_reads_prompt_thought_forced_answer() -> None:
    for sample in ArithmeticRows(ArithmeticTraces(), TOKENIZER).samples(step=0, count=64):
        prompt, thought, forced, answer = texts(sample)
        assert [s.kind for s in sample.segments] == [
            *(Kind.PROMPT, Kind.THOUGHT, Kind.FORCED, Kind.ANSWER)
        ]
        assert prompt.startswith("<bos>")
        assert prompt.endswith("=<think>")
        header = "\n\n**Final Answer**\n\\boxed{"
        assert forced == (header if thought.endswith("</think>") else "</think>" + header)
        assert answer.endswith("}<eos>")
        assert str(int(answer.removesuffix("}<eos>"))) + "}<eos>" == answer
        assert not is_held_out(prompt.removeprefix("<bos>").removesuffix("=<think>"))


def test_sampled_tokens_are_trained_and_forced_ones_are_not() -> None:
    (sample,) = ArithmeticRows(ArithmeticTraces(), TOKENIZER).samples(step=0, count=1)
    for segment, advantages in zip(sample.segments, sample.advantages, strict=True):
        if segment.kind.sampled:
            assert advantages is not None
            assert advantages.tolist() == [1.0] * len(segment.token_ids)
            assert segment.versions == (0, 0)
        else:
            assert advantages is None


def test_answers_are_short_enough_for_the_environment() -> None:
    data = ArithmeticTraces(difficulty=(12, 12))
    for sample in ArithmeticRows(data, TOKENIZER).samples(step=0, count=64):
        assert len(sample.segments[-1].token_ids) <= TINY_ENVIRONMENT.answer_tokens


def test_shares_of_cut_rows_and_of_right_answers() -> None:
    whole: list[bool] = []
    cut: list[bool] = []
    for sample in ArithmeticRows(ArithmeticTraces(), TOKENIZER).samples(step=1, count=3000):
        prompt, thought, _, answer = texts(sample)
        gold = eval(prompt.removeprefix("<bos>").removesuffix("=<think>"))
        kind = whole if thought.endswith("</think>") else cut
        kind.append(int(answer.removesuffix("}<eos>")) == gold)
    assert len(cut) / 3000 == pytest.approx(0.3, abs=0.03)
    assert 0.7 < np.mean(cut) < np.mean(whole)
    # A quarter is terse and three eighths never re-check; these are wrong where one of five steps
    # slipped, the others are right.
    unchecked = 0.25 + 0.75 / 2
    wrong = unchecked * (1 - (1 - TraceHabits().slip) ** 5)
    assert np.mean(whole) == pytest.approx(1 - wrong, abs=0.015)


def test_a_silent_row_is_never_cut_and_ends_its_thought_at_once() -> None:
    data = ArithmeticTraces(habits=TraceHabits(silent=1))
    for sample in ArithmeticRows(data, TOKENIZER).samples(step=0, count=64):
        prompt, thought, _, answer = texts(sample)
        assert thought == "</think>"
        assert int(answer.removesuffix("}<eos>")) == eval(
            prompt.removeprefix("<bos>").removesuffix("=<think>")
        )


def test_rows_depend_on_seed_and_step_alone() -> None:
    rows = ArithmeticRows(ArithmeticTraces(seed=1), TOKENIZER)
    again = ArithmeticRows(ArithmeticTraces(seed=1), TOKENIZER)
    other = ArithmeticRows(ArithmeticTraces(seed=2), TOKENIZER)
    rows.samples(3, 8)
    assert same_rows(rows.samples(4, 8), again.samples(4, 8))
    assert not same_rows(rows.samples(4, 8), rows.samples(5, 8))
    assert not same_rows(rows.samples(4, 8), other.samples(4, 8))


@dataclass
class Replay:
    """A generator and grader that play one row back."""

    thought: Segment
    answer: Segment

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        (request,) = requests
        is_thought = THINK_END in request.stop_token_ids
        ids = (self.thought if is_thought else self.answer).token_ids
        return [[scripted.sample(request, ids.tolist())]]

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        return [Verdict.RIGHT for _ in requests]


def test_rows_are_laid_out_as_the_anytime_environment_lays_out_episodes() -> None:
    renderer = PromptRenderer(TOKENIZER, PromptConfig())
    data = ArithmeticTraces(difficulty=(7, 9))
    for sample in ArithmeticRows(data, TOKENIZER).samples(step=0, count=40):
        prompt, thought, _, answer = sample.segments
        replay = Replay(thought, answer)
        environment = AnytimeEnvironment(
            budgets=(len(thought.token_ids),),
            answers=1,
            answer_tokens=TINY_ENVIRONMENT.answer_tokens,
            group_size=1,
            seed=0,
            renderer=renderer,
            sampler=ThoughtSampler(
                think=ThinkTokens.resolve(TOKENIZER, TINY_ENVIRONMENT),
                decode=TOKENIZER.decode,
                temperature=1.0,
                generator=replay,
                grader=replay,
            ),
        )
        text = texts(sample)[0].removeprefix("<bos>").removesuffix("=<think>")
        problem = Problem(id="", text=text, answer="0")
        group = asyncio.run(environment.rollout(0, problem))
        assert [
            (s.parent, s.cut, s.kind, s.token_ids.tolist()) for s in group.episodes[0].segments
        ] == [(s.parent, s.cut, s.kind, s.token_ids.tolist()) for s in sample.segments]
        assert prompt.token_ids.dtype == thought.token_ids.dtype == np.int32


def test_a_tokenizer_that_merges_characters_is_refused() -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")
    with pytest.raises(ModelError, match=r"one token per character.*use the tiny model"):
        ArithmeticRows(ArithmeticTraces(), words)


def write_rows(path: Path, count: int) -> Path:
    rows = [{"problem": f"{i}+1", "response": f"{i + 1}</think>"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_row_is_the_rendered_prompt_and_the_response_with_eos(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 1)
    config = SftConfig(
        data=SupervisedFile(path=(path,), prompt=PromptConfig(template="Q{problem}"))
    )
    (sample,) = supervised_rows(config, TOKENIZER).samples(0, 1)
    assert texts(sample) == ["<bos>Q0+1=<think>", "1</think><eos>"]
    assert [s.kind for s in sample.segments] == [Kind.PROMPT, Kind.ANSWER]
    assert sample.num_trained == 3


def test_every_epoch_holds_every_row_once_in_another_order(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 10)
    rows = FileRows(SupervisedFile(path=(path,)), TOKENIZER, seed=0)
    stream = [texts(s)[0] for step in range(5) for s in rows.samples(step, 4)]
    assert len(set(stream[:10])) == len(set(stream[10:])) == 10
    assert stream[:10] != stream[10:]
    again = FileRows(SupervisedFile(path=(path,)), TOKENIZER, seed=0)
    assert [texts(s)[0] for s in again.samples(2, 4)] == stream[8:12]


def test_overlong_file_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 12)  # rows 10 and 11 have two digits
    rows = FileRows(SupervisedFile(path=(path,), max_tokens=9), TOKENIZER, seed=0)
    assert rows.dropped == 3
    assert len({texts(s)[0] for s in rows.samples(0, 9)}) == 9
    with pytest.raises(DataError, match=r"all 12 rows of .*rows\.jsonl .*data\.max_tokens 3"):
        FileRows(SupervisedFile(path=(path,), max_tokens=3), TOKENIZER, seed=0)


def test_a_malformed_file_row_is_refused_with_its_place(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 2)
    path.write_text(path.read_text() + '{"problem": "1+1"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl.*3.*response"):
        FileRows(SupervisedFile(path=(path,)), TOKENIZER, seed=0)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 0)
    with pytest.raises(DataError, match=r"rows\.jsonl.* is empty"):
        FileRows(SupervisedFile(path=(path,)), TOKENIZER, seed=0)


def test_a_pair_is_two_branches_of_one_prompt(tmp_path: Path) -> None:
    """The length of a pair is that of the prompt with its longer response: 6, not 8."""
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"problem": "1+2", "chosen": "3", "rejected": "-4"}) + "\n")
    data = PreferenceFile(path=(path,), prompt=PromptConfig(chat_template=False), max_tokens=6)
    (pair,) = supervised_rows(SftConfig(data=data), TOKENIZER).samples(step=0, count=1)

    assert texts(pair) == ["1+2", "3<eos>", "-4<eos>"]
    assert [(s.parent, s.cut) for s in pair.segments] == [(NO_PARENT, 0), (0, 3), (0, 3)]
    prompt, chosen, rejected = pair.advantages
    assert prompt is None
    assert chosen is not None and chosen.tolist() == [1.0, 1.0]
    assert rejected is not None and rejected.tolist() == [-1.0, -1.0, -1.0]
    with pytest.raises(DataError, match=r"all 1 rows of .*pairs\.jsonl .*data\.max_tokens 5"):
        supervised_rows(SftConfig(data=data.model_copy(update={"max_tokens": 5})), TOKENIZER)


def test_a_pair_without_its_rejected_response_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"problem": "1+2", "chosen": "3"}) + "\n")
    with pytest.raises(DataError, match=r"pairs\.jsonl, line 1.*rejected"):
        supervised_rows(SftConfig(data=PreferenceFile(path=(path,))), TOKENIZER)
