"""Every kind of file people have: read as it is written, or refused in one sentence."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rlsys.config import FileData
from rlsys.data.problems import load_problems
from rlsys.data.row_files import iterate_rows
from rlsys.errors import DataError

ROWS = [{"problem": "1/2, or?", "answer": "0.50"}, {"problem": 'say "λ"', "answer": "007"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
CSV = 'problem,answer\n"1/2, or?",0.50\n\n"say ""λ""",007\n'


def rows_of(path: Path | str) -> list[dict[str, Any]]:
    return [row.values for row in iterate_rows(path)]


def refusal(path: Path | str) -> str:
    """The sentence that a file is refused with; it is one line."""
    with pytest.raises(DataError) as error:
        load_problems(FileData(path=(path,)))
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def write_parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


def write_arrow(path: Path, *, stream: bool = False) -> None:
    import pyarrow

    table = pyarrow.Table.from_pylist(ROWS)
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table)


def write_saved(path: Path) -> None:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))


TEXTS = {
    "a.jsonl": LINES,
    "a.JSONL": LINES,
    "a.ndjson": LINES.replace("\n", "\r\n\r\n"),
    "lines.json": LINES,
    "list.json": json.dumps(ROWS),
    "indented.json": json.dumps(ROWS, indent=2),
    "list.jsonl": json.dumps(ROWS, indent=2),
    "objects.json": "\n".join(json.dumps(row, indent=2) for row in ROWS),
    "rows.json": json.dumps({"version": 2, "data": ROWS}, indent=1),
    "columns.json": json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]}),
    "a.csv": CSV,
    "a.CSV": CSV.replace("\n", "\r\n"),
    "semicolons.csv": CSV.replace(",0", ";0").replace("m,a", "m;a").replace(",007", ";007"),
    "a.tsv": 'problem\tanswer\n1/2, or?\t0.50\n"say ""λ"""\t007\n',
}


def test_every_text_file_holds_the_same_rows(tmp_path: Path) -> None:
    for name, text in TEXTS.items():
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
            path = tmp_path / name
            path.write_bytes(text.encode(encoding))
            assert rows_of(path) == ROWS, (name, encoding)
            zipped = tmp_path / f"{name}.gz"
            zipped.write_bytes(gzip.compress(path.read_bytes()))
            assert rows_of(zipped) == ROWS, (name, encoding, "gz")


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.parquet": write_parquet,
    "a.PARQUET": write_parquet,
    "named_wrong.jsonl": write_parquet,
    "a.arrow": write_arrow,
    "stream.arrow": lambda path: write_arrow(path, stream=True),
    "saved": write_saved,
}


def test_every_binary_file_holds_the_same_rows(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        path = tmp_path / name
        write(path)
        assert rows_of(path) == ROWS, name
        if path.is_file():
            zipped = tmp_path / f"{name}.gz"
            zipped.write_bytes(gzip.compress(path.read_bytes()))
            assert rows_of(zipped) == ROWS, (name, "gz")


def test_a_gz_name_without_gzip_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_text(LINES)
    assert rows_of(path) == ROWS


def test_folders_globs_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shards"
    (folder / "more").mkdir(parents=True)
    for name in ("b-2.jsonl", "a-1.jsonl", "more/c.jsonl.gz", "README.md", "_SUCCESS", ".x.json"):
        data = json.dumps({"problem": name, "answer": "1"}).encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    names = ["a-1.jsonl", "b-2.jsonl", "more/c.jsonl.gz"]
    assert [row["problem"] for row in rows_of(folder)] == names
    assert [row["problem"] for row in rows_of(folder / "*-?.jsonl")] == names[:2]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [row["problem"] for row in rows_of("~/shards/[a]*.jsonl")] == names[:1]
    bracket = folder / "a[1].jsonl"
    bracket.write_text(LINES)
    assert rows_of(bracket) == ROWS


def test_urls_of_fsspec(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/set/one.jsonl", LINES.encode())
    memory.pipe("/set/two.jsonl", LINES.encode())
    (tmp_path / "a.csv").write_text(CSV)
    assert rows_of(f"file://{tmp_path}/a.csv") == ROWS
    assert rows_of("memory://set/one.jsonl") == ROWS
    assert rows_of("memory://set") == rows_of("memory://set/*.jsonl") == ROWS * 2
    assert "memory://set/none.jsonl" in refusal("memory://set/none.jsonl")
    assert "cannot be reached" in refusal("nosuch://a/b.jsonl")
    memory.pipe("/set/bad.jsonl", b"{")
    assert refusal("memory://set/bad.jsonl").startswith("memory://set/bad.jsonl, line 1: ")


def test_a_saved_dict_of_several_splits_asks_for_one(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=data).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=data, test=data).save_to_disk(str(tmp_path / "two"))
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two/test") == ROWS
    assert "holds the splits train, test; name one of them" in refusal(tmp_path / "two")
    (tmp_path / "two/test/data-00000-of-00001.arrow").write_bytes(b"x")
    assert "is not a readable folder of datasets.save_to_disk" in refusal(tmp_path / "two/test")


def test_folders_that_hold_no_one_data_set(tmp_path: Path) -> None:
    assert "holds no data file" in refusal(tmp_path)
    (tmp_path / "train-0.jsonl").write_text(LINES)
    (tmp_path / "test-0.jsonl").write_text(LINES)
    assert "several splits (test, train); name the wanted files" in refusal(tmp_path)
    (tmp_path / "test-0.jsonl").rename(tmp_path / "train-1.csv")
    assert "files of several kinds (CSV, JSON)" in refusal(tmp_path)
    assert "no data file matches" in refusal(tmp_path / "*.tsv")
    assert "data.*.source=hub data.*.name=openai/gsm8k" in refusal("openai/gsm8k")


GOOD = '{"problem": "1+1", "answer": "2"}\n'
REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "duplicate key": ("a.jsonl", GOOD + '{"problem": "1", "answer": "3", "answer": "4"}', "line 2"),
    "duplicate in list": ("a.json", '[\n{"a": 1,\n "a": 2}]', "line 2: key 'a' occurs twice"),
    "latin-1": ("a.jsonl", (GOOD + '{"problem": "é"}').encode("latin-1"), "line 2: byte 0xe9"),
    "latin-1 csv": ("a.csv", "problem,answer\ncafé,1".encode("latin-1"), "line 2: byte 0xe9"),
    "odd utf-16": ("a.jsonl", GOOD.encode("utf-16") + b"x", "line 2: byte 0x78 is not UTF-16"),
    "surrogate": ("a.jsonl", GOOD + r'{"problem": "\ud83d", "answer": "1"}', r"pair (\ud83d)"),
    "surrogate gold": ("a.jsonl", GOOD + r'{"problem": "1", "answer": "\ud83d"}', "line 2: col"),
    "NUL escape": ("a.jsonl", GOOD + r'{"problem": "1\u0000", "answer": "1"}', "NUL character"),
    "NUL bytes": ("a.jsonl", GOOD + "\0\0\0\0", "line 2: not a line of JSON (NUL bytes)"),
    "NUL csv": ("a.csv", "problem,answer\n1\0,1", "line 2: column 'problem' holds a NUL"),
    "separator": ("a.jsonl", r'{"problem": "1", "answer": "1\u001f2"}', "a control character"),
    "eaten latex": ("a.jsonl", r'{"problem": "1", "answer": "\frac12"}', r"where \frac was meant"),
    "LFS": ("a.parquet", "version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "HTML parquet": ("a.parquet", "<!doctype html>", "a web page"),
    "HTML json": ("a.json", "\n <html>", "a web page"),
    "XML csv": ("a.csv", '<?xml version="1.0"?><Error>', "a web page"),
    "zip": ("a.jsonl", b"PK\x03\x04", "a zip archive and not JSON lines; unpack"),
    "zero parquet": ("a.parquet", "", "not readable Parquet"),
    "cut parquet": ("a.parquet", b"PAR1xxxx", "not readable Parquet"),
    "cut arrow": ("a.arrow", b"ARROW1\0\0xxxx", "not readable Arrow"),
    "cut gzip": ("a.csv.gz", gzip.compress(CSV.encode() * 99)[:-9], "cannot be read"),
    "raw newline": ("a.jsonl", '{"problem": "one\ntwo", "answer": "3"}', "does not end on its"),
    "raw newline list": ("a.json", '[{"problem": "one\ntwo"}]', "write a line break inside"),
    "raw tab": ("a.jsonl", '{"problem": "a\tb", "answer": "3"}', r"write it as \t"),
    "mac csv": ("a.csv", "problem,answer\r1,2\r", "a carriage return without a line feed"),
    "gzip twice": ("a.json.gz", gzip.compress(gzip.compress(b"{}")), "gzip once more"),
    "nothing": ("a.json", "{}", "among none at all"),
    "single quotes": ("a.jsonl", "{'problem': '1'}", "(single quotes); write texts in double"),
    "None": ("a.jsonl", GOOD + '{"problem": "1", "answer": None}', "line 2: not a line of JSON (P"),
    "commas": ("a.jsonl", GOOD.strip() + ",\n" + GOOD, "line 1: not a line of JSON (a comma"),
    "commas json": ("a.json", GOOD.strip() + ",\n" + GOOD, "line 1: not JSON (rows have commas"),
    "last comma": ("a.json", f"[\n{GOOD},\n]", "line 4: not JSON (a comma before ]"),
    "two rows": ("a.jsonl", GOOD.strip() + GOOD, "line 1: not a line of JSON (two objects on one"),
    "backslash": ("a.jsonl", r'{"problem": "\(x\)", "answer": "1"}', "write each backslash"),
    "cut list": ("a.json", f"[\n{GOOD},\n{GOOD}", "line 5: not JSON (no comma or ] after a row)"),
    "list of lists": ("a.json", '[["problem", "answer"]]', "line 1: a list where a row"),
    "text": ("a.json", '"problem"', "line 1: a str where a row"),
    "objects": (
        "a.json",
        '{"problem": {"0": "1"}, "answer": {"0": "1"}}',
        'to_json(orient="records"',
    ),
    "splits": ("a.json", '{"train": [{"a": 1}], "test": [{"a": 1}]}', "several lists of rows"),
    "columns": ("a.json", '{"problem": ["1", "2"], "answer": ["1"]}', "problem 2, answer 1"),
    "csv cells": (
        "a.csv",
        "problem,answer\n1,2\n1,2,3\n",
        "line 3: 3 cells where the header has",
    ),
    "csv quotes": ("a.csv", 'problem,answer\n"a" b,2\n', "line 2: not a row of CSV"),
    "csv open": ("a.csv", 'problem,answer\n1,2\n"a,2\n3,4\n', "line 3: not a row of CSV"),
    "csv header": ("a.csv", "problem,answer,answer\n", "names column 'answer' twice"),
    "csv only header": ("a.csv", "problem,answer\n", "is empty"),
    "csv empty": ("a.csv", "problem,answer\n1,\n", "line 2: column 'answer' must hold"),
}


def test_refusals_name_file_line_and_remedy(tmp_path: Path) -> None:
    for name, (file, content, said) in REFUSED.items():
        path = tmp_path / file
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        sentence = refusal(path)
        assert str(path) in sentence and said in sentence, (name, sentence)


def test_a_row_of_several_lines_is_named_by_its_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('problem,answer\n"one\ntwo",3\n\n5,\n')
    assert [row.place for row in iterate_rows(path)] == [f"{path}, line 2", f"{path}, line 5"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS, indent=1))
    assert [row.place for row in iterate_rows(path)] == [f"{path}, line 2", f"{path}, line 6"]


def test_columns_of_parquet_keep_their_values(tmp_path: Path) -> None:
    from decimal import Decimal

    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(
        {
            "problem": ["1", "2"],
            "half": pyarrow.array([0.1, None], pyarrow.float32()),
            "whole": pyarrow.array([2**62 + 1, -1], pyarrow.int64()),
            "exact": pyarrow.array([Decimal("2.50"), Decimal("-0.10")]),
            "small": pyarrow.array([1e-7, 1e22]),
        }
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)

    def golds(column: str) -> list[str]:
        source = FileData(path=(path,), answer_column=column, skip_unanswered=True)
        return [problem.answer for problem in load_problems(source)]

    assert golds("half") == ["0.1"]
    assert golds("whole") == ["4611686018427387905", "-1"]
    assert golds("exact") == ["2.50", "-0.10"]
    assert golds("small") == ["0.0000001", "10000000000000000000000"]
