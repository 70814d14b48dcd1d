"""Problem files and their refusals; the endless stream."""

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsys.config import ArithmeticData, FileData, HubData, SupervisedFile
from rlsys.data.problems import TaskStream, load_problems, read_rows
from rlsys.errors import DataError
from rlsys.grading.compare import is_correct
from rlsys.types import GOLD_SEPARATOR, Problem

REAL_DATA = Path(os.environ.get("RLSYS_TEST_DATA", "no folder"))
needs_real_data = pytest.mark.skipif(
    not REAL_DATA.is_dir(), reason="RLSYS_TEST_DATA names no folder of problem files"
)

ROWS: list[dict[str, object]] = [
    {"problem": "1+1", "answer": "2", "key": "a", "level": 1},
    {"problem": " 2+2 ", "answer": 4, "key": "b", "level": "2.5"},
    {"problem": "1/2", "answer": r"so $\boxed{\frac{1}{2}}$", "key": "c", "level": None},
]


def write_lines(path: Path, *lines: str) -> Path:
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def jsonl(path: Path, rows: Sequence[Mapping[str, object]] = ROWS) -> Path:
    return write_lines(path, *(json.dumps(row) for row in rows))


def json_array(path: Path) -> Path:
    path.write_text(json.dumps(ROWS, indent=1))
    return path


def parquet(path: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    columns = {key: [str(row[key]) for row in ROWS] for key in ("problem", "answer")}
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.jsonl", jsonl),
        ("a.jsonl.gz", jsonl),
        ("a.json", jsonl),
        ("a.json", json_array),
        ("a.parquet", parquet),
    ],
)
def test_every_kind_of_file_holds_the_same_problems(
    tmp_path: Path, name: str, write: Callable[[Path], Path]
) -> None:
    problems = load_problems(FileData(path=(write(tmp_path / name),)))
    assert problems == [
        Problem(id="row-0", text="1+1", answer="2"),
        Problem(id="row-1", text="2+2", answer="4"),
        Problem(id="row-2", text="1/2", answer=r"\frac{1}{2}"),
    ]


def test_columns_and_window(tmp_path: Path) -> None:
    rows = [{"q": str(i), "a": str(-i), "key": f"k{i}", "level": i} for i in range(6)]
    paths = (jsonl(tmp_path / "a.jsonl", rows[:4]), jsonl(tmp_path / "b.jsonl", rows[4:]))
    source = FileData(
        path=paths,
        problem_column="q",
        answer_column="a",
        id_column="key",
        difficulty_column="level",
        offset=3,
        limit=2,
    )
    assert load_problems(source) == [
        Problem(id="k3", text="3", answer="-3", difficulty=3.0),
        Problem(id="k4", text="4", answer="-4", difficulty=4.0),
    ]


GOOD = '{"problem": "1+1", "answer": "2"}'


def test_a_malformed_row_is_refused_with_file_and_line(tmp_path: Path) -> None:
    cases: list[tuple[str, str]] = [
        ('{"problem": "1+1", ', "not a line of JSON"),
        ('["1+1", "2"]', "a list where a row"),
        ('{"problem": "1+1"}', "no column 'answer' among problem"),
        ('{"problem": "", "answer": "2"}', "column 'problem' must hold a text or a number, not ''"),
        ('{"problem": "1+1", "answer": null}', "not None"),
        ('{"problem": "1+1", "answer": []}', "not []"),
        ('{"problem": "1+1", "answer": true}', "not True"),
        (r'{"problem": "1+1", "answer": "\\boxed{}"}', "holds no answer to compare"),
        ("\xff", "byte 0xff is not UTF-8"),
        ("[" * 100_000, "not a line of JSON"),
    ]
    for bad, said in cases:
        path = tmp_path / "a.jsonl"
        path.write_bytes(f"{GOOD}\n\n{bad}\n{GOOD}\n".encode("latin-1"))
        with pytest.raises(DataError) as error:
            load_problems(FileData(path=(path,)))
        assert f"{path}, line 3: " in str(error.value), bad
        assert said in str(error.value), bad


def test_a_malformed_json_array_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.json", "[", GOOD + ",", '{"problem": }', "]")
    with pytest.raises(DataError, match=r"a\.json, line 3: not JSON"):
        load_problems(FileData(path=(path,)))


def test_missing_empty_unknown_and_broken_files_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress((GOOD + "\n").encode() * 1000)[:-20])
    text = write_lines(tmp_path / "a.txt", GOOD)
    fake = write_lines(tmp_path / "a.parquet", GOOD)
    for path, said in (
        (tmp_path / "none.jsonl", "does not exist"),
        (empty, "is empty"),
        (cut, "cannot be read"),
        (text, "no known kind"),
        (fake, "not readable Parquet"),
    ):
        with pytest.raises(DataError, match=said) as error:
            load_problems(FileData(path=(path,)))
        assert path.name in str(error.value)


def test_window_past_the_end_and_repeated_ids_are_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="no row after the first 3"):
        load_problems(FileData(path=(path,), offset=3))
    with pytest.raises(DataError, match="id 'a' in column 'key' occurs twice"):
        load_problems(FileData(path=(path, path), id_column="key"))
    with pytest.raises(DataError, match=r"line 3: difficulty None in column 'level'"):
        load_problems(FileData(path=(path,), difficulty_column="level"))


def test_a_gold_has_its_own_tolerance(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"problem": "1", "answer": "4.2", "error": "1e-1"},
        {"problem": "2", "answer": ["4.2", "9"], "error": 0.05},
        {"problem": "3", "answer": "1, 2", "error": "1e-1, 1e-2"},
        {"problem": "4", "answer": "4.2", "error": None},
        {"problem": "5", "answer": "4.2", "error": ""},
    ]
    path = jsonl(tmp_path / "olympiad.jsonl", rows)
    source = FileData(path=(str(path),), tolerance_column="error")
    golds = [problem.answer for problem in load_problems(source)]
    assert [gold.split(GOLD_SEPARATOR)[1:] for gold in golds] == [
        *(["tolerance:1/10"], ["9", "tolerance:1/20"], ["tolerance:1/100"], [], []),
    ]
    for gold, near, far in zip(golds[:2], ("4.3", "4.24"), ("4.31", "4.26"), strict=True):
        assert is_correct(rf"\boxed{{{near}}}", gold)
        assert not is_correct(rf"\boxed{{{far}}}", gold)
    for bad in ("about 1", "-0.1", "1/0", True):
        jsonl(path, [{**rows[0], "error": bad}])
        with pytest.raises(DataError, match=r"line 1: tolerance .* in column 'error' must be"):
            load_problems(source)
    with pytest.raises(DataError, match="no column 'precision'"):
        load_problems(source.model_copy(update={"tolerance_column": "precision"}))


def test_hub_data_from_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    jsonl(folder / "train.jsonl", [{"problem": "1+1", "answer": "#### 2"}] * 3)
    problems = load_problems(HubData(name=str(folder), offset=1))
    assert problems == [
        Problem(id="row-1", text="1+1", answer="2"),
        Problem(id="row-2", text="1+1", answer="2"),
    ]
    with pytest.raises(DataError, match="no split 'test'"):
        load_problems(HubData(name=str(folder), split="test"))
    with pytest.raises(DataError, match="row 1: no column 'gold' among problem, answer"):
        load_problems(HubData(name=str(folder), answer_column="gold"))
    with pytest.raises(DataError, match="nowhere"):
        load_problems(HubData(name=str(tmp_path / "nowhere")))


def test_arithmetic_problems_come_from_the_generator() -> None:
    problems = load_problems(ArithmeticData(size=3, seed=5))
    assert len(problems) == 3


def test_read_rows_keeps_the_space_around_a_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "response": " Think\n"}))
    assert list(read_rows(SupervisedFile(path=(path,)))) == [("1+1", " Think\n")]


def test_read_rows_yields_texts(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl")
    source = SupervisedFile(path=(path,), prompt_column="answer", response_column="problem")
    assert list(read_rows(source))[:2] == [("2", "1+1"), ("4", " 2+2 ")]


def numbered(count: int) -> list[Problem]:
    return [Problem(id=str(i), text=str(i), answer=str(i)) for i in range(count)]


@given(count=st.integers(1, 20), start=st.integers(0, 60), seed=st.integers(0, 2**40))
def test_a_resumed_stream_equals_the_uninterrupted_one(count: int, start: int, seed: int) -> None:
    whole = TaskStream(numbered(count), seed=seed, shuffle=True)
    uninterrupted = [whole.task(index) for index in range(start + 30)]
    resumed = TaskStream(numbered(count), seed=seed, shuffle=True)
    assert [resumed.task(i) for i in range(start, start + 30)] == uninterrupted[start:]


@given(count=st.integers(1, 20), epoch=st.integers(0, 5))
def test_every_epoch_holds_every_problem_once(count: int, epoch: int) -> None:
    stream = TaskStream(numbered(count), seed=1, shuffle=True)
    ids = [int(stream.task(epoch * count + i).id) for i in range(count)]
    assert sorted(ids) == list(range(count))


def test_epochs_and_seeds_shuffle_differently() -> None:
    def order(seed: int, epoch: int) -> list[str]:
        stream = TaskStream(numbered(50), seed=seed, shuffle=True)
        return [stream.task(epoch * 50 + i).id for i in range(50)]

    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(0, 0) != [str(i) for i in range(50)]


def test_without_shuffle_the_order_stays() -> None:
    stream = TaskStream(numbered(3), seed=0, shuffle=False)
    assert [stream.task(i).id for i in range(7)] == ["0", "1", "2", "0", "1", "2", "0"]
    assert len(stream) == 3


@needs_real_data
@pytest.mark.parametrize("name", ["train/svamp.jsonl.gz", "eval/math500.jsonl"])
def test_real_problems_load_and_grade_themselves(name: str) -> None:
    problems = load_problems(FileData(path=(REAL_DATA / name,), id_column="id"))
    assert len(problems) == {"svamp": 1000, "math500": 500}[Path(name).name.split(".")[0]]
    assert all(is_correct(rf"\boxed{{{p.answer}}}", p.answer) for p in problems)


@needs_real_data
def test_real_solutions_are_right_and_real_answers_differ() -> None:
    path = (REAL_DATA / "eval/math500.jsonl",)
    source = SupervisedFile(path=path, prompt_column="solution", response_column="answer")
    rows = list(read_rows(source))[:60]
    assert all(is_correct(solution, answer) for solution, answer in rows)
    wrong = [
        is_correct(rf"\boxed{{{other}}}", answer) for (_, answer), (_, other) in pairwise(rows)
    ]
    assert sum(wrong) <= 1  # two neighbours may share an answer
