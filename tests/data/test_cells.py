"""From columns to problems: nested names, chats, numbers, lists of answers, guesses."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlsys.config import FileData, PreferenceFile, SupervisedFile
from rlsys.data.problems import load_problem_set, load_problems, read_rows
from rlsys.errors import DataError
from rlsys.types import GOLD_SEPARATOR, Problem


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def golds(file: Path, *rows: str | dict[str, Any], **settings: Any) -> list[str]:
    """Golds of rows, a text standing for JSON of the answer alone."""
    lines = [
        json.dumps(r) if isinstance(r, dict) else f'{{"problem":"1","answer":{r}}}' for r in rows
    ]
    file.write_text("\n".join(lines))
    return [problem.answer for problem in load_problems(FileData(path=(file,), **settings))]


def refusal(file: Path, *rows: str | dict[str, Any], **settings: Any) -> str:
    with pytest.raises(DataError) as error:
        golds(file, *rows, **settings)
    return str(error.value)


ANSWERS = {
    "3": "3",
    "4.0": "4.0",
    "2.50": "2.50",
    "1e-05": "0.00001",
    "2.5e-07": "0.00000025",
    "1e+22": "10000000000000000000000",
    "0.1000000000000000055511151231257827": "0.1000000000000000055511151231257827",
    "1e400": "1" + "0" * 400,
    "1e999999999": "1E+999999999",
    "12345678901234567890": "12345678901234567890",
    "9" * 5000: "9" * 5000,
    r'"#### 2,125"': "2,125",
    r'"We get $\\boxed{\\frac{1}{2}}$."': r"\frac{1}{2}",
    '"$3$ or $4$"': "$3$ or $4$",
    '["3"]': "3",
    '["$2$", "$3$", "$2$"]': GOLD_SEPARATOR.join(("2", "3")),
    "[3, 4.50]": GOLD_SEPARATOR.join(("3", "4.50")),
    r'"[\"3\", \"4\"]"': GOLD_SEPARATOR.join(("3", "4")),
    '"[1, 2)"': "[1, 2)",
}


def test_answers_are_the_text_they_are_written_as(file: Path) -> None:
    for written, gold in ANSWERS.items():
        assert golds(file, written) == [gold], written[:60]
    assert golds(file, '["1", "2", "1"]', answers="all") == ["1, 2, 1"]


def test_answers_that_are_none_are_refused(file: Path) -> None:
    for written, said in {
        "true": 'write the text that is meant, for instance "yes"',
        "Infinity": "not inf",
        '["3", null]': "not None",
        '[["3"]]': "not ['3']; name a column of single values",
        '{"ground_truth": "3"}': "name what is inside it, for instance answer.ground_truth",
        "\"['3', '4']\"": "a Python list written as text",
    }.items():
        assert said in refusal(file, written), written


def test_rows_without_an_answer_are_refused_or_skipped_and_counted(file: Path) -> None:
    for written in ("null", "NaN", '""', '" "', "[]"):
        assert "set data.*.skip_unanswered=true" in refusal(file, written)
        assert golds(file, '"1"', written, '"2"', skip_unanswered=True) == ["1", "2"]
        source = FileData(path=(file,), skip_unanswered=True)
        problems, unanswered = load_problem_set(source)
        assert ([problem.id for problem in problems], unanswered) == (["row-0", "row-2"], 1)
        assert "none of the 1 rows" in refusal(file, written, skip_unanswered=True)


VERL = {
    "prompt": [{"role": "user", "content": "1+2?"}],
    "reward_model": {"style": "rule", "ground_truth": "3"},
    "extra_info": {"index": 7, "split": "train"},
}


def test_a_dot_reaches_into_nested_columns(file: Path) -> None:
    file.write_text(json.dumps(VERL))
    source = FileData(
        path=(file,),
        problem_column="prompt",
        answer_column="reward_model.ground_truth",
        id_column="extra_info.index",
    )
    assert load_problems(source) == [Problem(id="7", text="1+2?", answer="3")]
    row = {"problem": "1", "a.b": "2", "a": {"b": "3"}, "c.d": {"e": "4"}, "n": None}
    assert golds(file, row, answer_column="a.b") == ["2"]
    assert golds(file, row, answer_column="c.d.e") == ["4"]
    assert "not None" in refusal(file, row, answer_column="n.x")
    assert "no column 'a.x' among problem, a.b, c.d.e, n" in refusal(file, row, answer_column="a.x")


def chat(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def test_chats(file: Path) -> None:
    settings = {"problem_column": "messages", "answer_column": "messages"}
    plain = chat(("user", "1+2?"), ("assistant", "so #### 3"))
    parts = chat(("user", [{"type": "text", "text": "1+2?"}]), ("assistant", "3"))
    human = [{"from": "human", "value": "1+2?"}, {"from": "gpt", "value": "3"}]
    for messages in (plain, parts, human, json.dumps(plain)):
        assert golds(file, {"messages": messages}, **settings) == ["3"]
        source = FileData(path=(file,), **settings)
        assert load_problems(source)[0].text == "1+2?"
    system = chat(("system", "Be brief."), *[(t["role"], t["content"]) for t in plain])
    long = chat(("user", "0?"), ("assistant", "0"), ("user", "1?"), ("assistant", "1"))
    said = refusal(file, {"messages": system}, **settings)
    assert "has system turns before its last user turn" in said
    assert "data.*.earlier_turns=drop" in said
    assert "user and assistant turns" in refusal(file, {"messages": long}, **settings)
    for messages, gold in ((system, "3"), (long, "1")):
        assert golds(file, {"messages": messages}, **settings, earlier_turns="drop") == [gold]
    image = chat(("user", [{"type": "image", "image": "x"}]), ("assistant", "3"))
    assert "holds more than text" in refusal(file, {"messages": image}, **settings)
    asked = {"messages": chat(("user", "1?"))}
    assert "no assistant turn after its last user turn" in refusal(file, asked, **settings)


def test_supervised_rows_and_pairs_from_chats(file: Path) -> None:
    messages = chat(("user", "1+2?"), ("assistant", " 3"))
    file.write_text(json.dumps({"messages": messages}))
    columns = {"prompt_column": "messages", "response_column": "messages"}
    assert list(read_rows(SupervisedFile(path=(file,), **columns))) == [("1+2?", " 3")]
    with pytest.raises(DataError, match=r"try data.prompt_column=messages data.response_column=me"):
        list(read_rows(SupervisedFile(path=(file,))))
    worse = chat(("user", "1+2?"), ("assistant", "4"))
    file.write_text(json.dumps({"chosen": messages, "rejected": worse}))
    pairs = PreferenceFile(path=(file,), prompt_column="chosen")
    assert list(read_rows(pairs)) == [("1+2?", " 3", "4")]


def test_missing_columns_propose_words(file: Path) -> None:
    both = "data.*.problem_column={} data.*.answer_column={}"
    for row, words in (
        ({"Problem": "1", "Answer": "2"}, both.format("Problem", "Answer")),
        ({"question": "1", "final_answer": ["2"]}, both.format("question", "final_answer")),
        (VERL, both.format("prompt", "reward_model.ground_truth")),
        ({"messages": chat(("user", "1"))}, both.format("messages", "messages")),
        ({"problem": "1", "gold": "2"}, "data.*.answer_column=gold"),
        ({"x": 1, "y": 2}, "name the right one with data.*.problem_column and data.*.answer_col"),
    ):
        assert words in refusal(file, row).replace("'", ""), row


def test_shapes_of_the_published_data(file: Path) -> None:
    """The original files of the three papers' projects, in small."""
    path = file.with_suffix(".json")

    def load(rows: list[dict[str, Any]], **settings: Any) -> list[str]:
        path.write_text(json.dumps(rows, indent=4))
        return [p.answer for p in load_problems(FileData(path=(path,), **settings))]

    minerva = {"problem": "Find it.", "answer": "1.6 \\cdot 10^{-8}", "solution": "...", "idx": 0}
    olympiad = {
        "id": 1606,
        "question": "Find $x$.",
        "final_answer": ["$2$"],
        "is_multiple_answer": False,
    }
    several = olympiad | {"id": 1607, "final_answer": ["$1,2$", "$3$"]}
    math = {"problem": "1?", "answer": "2", "difficulty": 3}
    assert load([minerva]) == [r"1.6 \cdot 10^{-8}"]
    columns = {"problem_column": "question", "answer_column": "final_answer"}
    assert load([olympiad, several], **columns, id_column="id") == ["2", "1,2\x1f3"]
    assert load([math, math | {"answer": None}], skip_unanswered=True) == ["2"]


def test_one_path_needs_no_brackets_and_urls_stay_whole() -> None:
    assert FileData(path="a.jsonl").path == ("a.jsonl",)
    assert FileData(path=("s3://bucket/a.jsonl",)).path == ("s3://bucket/a.jsonl",)
