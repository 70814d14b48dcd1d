"""Rows of the reflection model, truncated paths and pairs, and that they fit what is prefilled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlsys.algorithms.reflection import ChunkedThought, chunk_thought
from rlsys.config import SftConfig, SupervisedFile
from rlsys.errors import DataError
from rlsys.reflection.labelling.arithmetic import result_chunks
from rlsys.reflection.labelling.responses import AnswerFrom, Thought
from rlsys.reflection.labelling.rows import (
    AnsweredThought,
    LabelledThought,
    label_counts,
    labelled_thoughts,
    pair_rows,
    path_rows,
    reflection_rows,
)
from rlsys.reflection.labelling.teacher import Labels, ReadingTeacher
from rlsys.reflection.prompts import COMPACT, TEXT, layout_named
from rlsys.sft.rows import FileRows
from rlsys.sft.tiny_model import tiny_tokenizer
from rlsys.types import Kind, Problem, Tokens, Verdict

TINY = tiny_tokenizer()
RECHECKED = "3+8=11;11-2=9?3+8=11;11-2=9"
CONFIGS = Path(__file__).parents[2] / "configs"


def chunk(thought: Thought) -> ChunkedThought:
    return chunk_thought([chr(i) for i in thought.token_ids], separator="(?=[;?])", most=1)


def codes(text: str) -> Tokens:
    return np.array([ord(c) for c in text], np.int32)


def thought_of(text: str, row: str = "p/0", problem: str = "p") -> Thought:
    return Thought(
        id=row,
        problem=Problem(id=problem, text="3+8-2", answer="9"),
        token_ids=codes(text),
        closed=True,
    )


def labelled(text: str, *, row: str = "p/0", problem: str = "p") -> LabelledThought:
    thought = thought_of(text, row, problem)
    labels = asyncio.run(ReadingTeacher(result_chunks).label(thought, chunk(thought)))
    return LabelledThought(thought, chunk(thought), labels.results)


def decode(token_ids: Tokens) -> str:
    return "".join(map(chr, token_ids))


def test_a_row_asks_without_the_answer_and_labels_every_chunk() -> None:
    (row,) = reflection_rows([labelled(RECHECKED)], COMPACT, unanswered=False)
    assert row == {
        "problem": "3+8-2\n[1]3+8=11[2];11-2=9[3]?3+8=11[4];11-2=9",
        "response": "T[2].R[3].T[4].R",
    }
    (row,) = reflection_rows([labelled(RECHECKED)], TEXT, unanswered=False)
    assert (
        "Question:\n3+8-2\n\nResponse:\n**[1].** 3+8=11\n\n**[2].** ;11-2=9\n\n" in row["problem"]
    )
    assert row["response"] == " Think\n\n[2]. Result\n\n[3]. Think\n\n[4]. Result"


def test_texts_with_braces_are_only_texts() -> None:
    turn = TEXT.user_turn(r"What is \frac{1}{2}?", [r"{count} \boxed{3}", "{problem}"])
    assert r"What is \frac{1}{2}?" in turn
    assert "**[1].** {count} \\boxed{3}\n\n**[2].** {problem}" in turn


def test_unanswered_thoughts_are_trained_on_only_if_wanted() -> None:
    thoughts = [labelled("3+8=11"), labelled("")]
    assert list(reflection_rows(thoughts, COMPACT, unanswered=False)) == []
    (row,) = reflection_rows(thoughts, COMPACT, unanswered=True)
    assert row["response"] == "T"


def test_what_is_trained_follows_exactly_what_is_prefilled(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = reflection_rows([labelled(RECHECKED)], COMPACT, unanswered=False)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = SupervisedFile(path=(path,), prompt=COMPACT.prompt)
    (sample,) = FileRows(data, TINY, seed=0).samples(0, 1)
    prompt, answer = (TINY.decode(s.token_ids) for s in sample.segments)
    assert [s.kind for s in sample.segments] == [Kind.PROMPT, Kind.ANSWER]
    assert prompt.endswith("[4];11-2=9=<think>[1].")
    assert answer == "T[2].R[3].T[4].R<eos>"


def test_the_recipes_prefill_what_the_detector_prefills() -> None:
    tree = yaml.safe_load((CONFIGS / "sft_tiny_reflection.yaml").read_text())
    detector = yaml.safe_load((CONFIGS / "reflection_tiny.yaml").read_text())["detector"]
    data = SftConfig.model_validate(tree).data
    assert isinstance(data, SupervisedFile)
    prompt = layout_named(detector["layout"]).prompt
    assert (data.prompt.prefill, data.prompt.template) == (prompt.prefill, prompt.template)


def test_labels_of_another_chunking_are_refused() -> None:
    labels = [Labels(id="p/0", chunks=3, results=())]
    with pytest.raises(DataError, match="labelled in 3 chunks but now has 4; label again"):
        list(labelled_thoughts([thought_of(RECHECKED)], labels, chunk))


def test_thoughts_without_labels_are_left_out() -> None:
    thoughts = [thought_of("9"), thought_of(RECHECKED, "p/1")]
    labels = [Labels(id="p/1", chunks=4, results=(1, 3))]
    (item,) = labelled_thoughts(thoughts, labels, chunk)
    assert item.thought.id == "p/1"
    counts = label_counts([item])
    assert counts == {"thoughts": 1, "answered": 1, "chunks": 4, "result_chunks": 2}


def test_known_tokens_end_with_the_chunk_that_first_states_the_answer() -> None:
    assert labelled(RECHECKED).known_tokens == len("3+8=11;11-2=9")
    assert labelled("3+8=11;11-2=9").known_tokens == len("3+8=11;11-2=9")
    assert labelled("3+8=11").known_tokens == len("3+8=11")
    assert labelled("").known_tokens == 0


def answered(item: LabelledThought, verdict: Verdict = Verdict.RIGHT) -> AnsweredThought:
    return AnsweredThought(
        item,
        AnswerFrom(codes("</think>9!"), 20, verdict),
        AnswerFrom(codes("</think>9."), 40, Verdict.RIGHT),
    )


def test_paths_and_pairs_hold_right_truncations_only() -> None:
    paths = [
        answered(labelled(RECHECKED), Verdict.WRONG),
        answered(labelled(RECHECKED)),
        answered(labelled("3+8=11;11-2=9")),
    ]
    short, whole = "3+8=11;11-2=9</think>9!", RECHECKED + "</think>9."
    assert list(path_rows(paths, decode, per_problem=4)) == [
        {"problem": "3+8-2", "response": short},
        {"problem": "3+8-2", "response": short},
    ]
    assert list(pair_rows(paths, decode, per_problem=4)) == [
        {"problem": "3+8-2", "chosen": short, "rejected": whole}
    ]


def test_a_problem_gives_at_most_four_rows() -> None:
    paths = [answered(labelled(RECHECKED, row=f"p/{i}")) for i in range(6)]
    paths += [answered(labelled(RECHECKED, row="q/0", problem="q"))]
    assert len(list(path_rows(paths, decode, per_problem=4))) == 5
    assert len(list(pair_rows(paths, decode, per_problem=4))) == 5
