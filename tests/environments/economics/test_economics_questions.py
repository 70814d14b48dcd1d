"""Corpus and sampler: golds of worked solutions, real loaders on local files, the even mix."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlsys.config.economics import (
    METAMATH_TYPES,
    NUMINA_TYPE,
    ArithmeticCorpus,
    DatasetsCorpus,
    Table,
)
from rlsys.environments.economics.questions import Corpus, Question, load_corpus, solution_gold
from rlsys.environments.economics.sampler import sample_questions
from rlsys.errors import DataError

GOLD_OF_SOLUTION = {
    "20*12 = 240 pens\n#### 240\nThe answer is: 240": "240",
    "#### 1,000": "1,000",
    r"First \boxed{7}, then more. The answer is: \frac{1}{2}": r"\frac{1}{2}",
    r"So $\boxed{\frac{1}{7}}$.": r"\frac{1}{7}",
    r"\boxed{1}, hence \boxed{\frac{1}{\sqrt{2}}}": r"\frac{1}{\sqrt{2}}",
    r"\boxed{1} and \boxed{\frac{1}{\sqrt{2}}}": r"1, \frac{1}{\sqrt{2}}",
    r"The answer is: $\boxed{5}$.": "5",
    "It is seven.": "",
    r"\boxed{}": "",
    r"\boxed{\frac{1}": "",
    r"\boxed{9^{9^{9}}}": "",
    "": "",
}


def test_b2_b3_gold_of_a_worked_solution() -> None:
    found = {solution: solution_gold(solution) for solution in GOLD_OF_SOLUTION}
    assert found == GOLD_OF_SOLUTION


def tables(
    tmp_path: Path, metamath: list[dict[str, Any]], numina: list[dict[str, Any]]
) -> tuple[Table, Table]:
    """The two default tables, read from local files."""
    default = DatasetsCorpus().tables
    made: list[Table] = []
    for table, rows in zip(default, (metamath, numina), strict=True):
        path = tmp_path / f"{table.split}-{len(made)}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        made.append(Table(**table.model_dump() | {"path": (path,)}))
    first, second = made
    return first, second


METAMATH_ROWS = [
    {"type": kind, "query": f"{kind}?", "response": f"...\nThe answer is: {i}", "extra": None}
    for i, kind in enumerate(METAMATH_TYPES)
]
NUMINA_ROWS = [{"problem": "numina?", "solution": r"so \boxed{\dfrac{3}{4}}", "messages": []}]


def test_data_sets_through_the_real_loader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = [
        {"type": "Other", "query": "?", "response": "The answer is: 1", "extra": None},
        {"type": "GSM_SV", "query": "?", "response": "no answer", "extra": None},
        {"type": "GSM_SV", "query": " ", "response": "The answer is: 1", "extra": None},
    ]
    config = DatasetsCorpus(tables=tables(tmp_path, METAMATH_ROWS + odd, NUMINA_ROWS))
    corpus = load_corpus(config)
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("rlsys")
    ] == [
        "data set 'meta-math/MetaMathQA', split 'train[0:500]': 3 of 11 rows skipped, of other "
        "types or without a question or a gold answer in columns 'query', 'response', 'type'"
    ]
    assert set(corpus.by_type) == {*METAMATH_TYPES, NUMINA_TYPE}
    assert corpus.by_type["GSM_SV"] == (
        Question("meta-math/MetaMathQA_6", "GSM_SV?", "6", "GSM_SV"),
    )
    assert corpus.by_type[NUMINA_TYPE][0].gold == r"\dfrac{3}{4}"
    assert (len(corpus), corpus.skipped) == (9, 3)
    assert corpus.source == "meta-math/MetaMathQA[0:500] + AI-MO/NuminaMath-TIR[0:500]"


def test_the_window_is_read_unless_prod(tmp_path: Path) -> None:
    rows = [NUMINA_ROWS[0] | {"problem": f"{i}?"} for i in range(7)]
    numina = tables(tmp_path, METAMATH_ROWS, rows)[1]
    numina = Table(**numina.model_dump() | {"window": (2, 5)})
    some = load_corpus(DatasetsCorpus(tables=(numina,)))
    assert [q.text for q in some.by_type[NUMINA_TYPE]] == ["2?", "3?", "4?"]
    assert some.source == "AI-MO/NuminaMath-TIR[2:5]"
    everything = load_corpus(DatasetsCorpus(tables=(numina,), prod=True))
    assert len(everything) == 7
    assert everything.source == "AI-MO/NuminaMath-TIR"


def test_parquet_files(tmp_path: Path) -> None:
    import datasets

    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(NUMINA_ROWS).to_parquet(str(path))
    table = Table(**DatasetsCorpus().tables[1].model_dump() | {"path": (path,)})
    assert len(load_corpus(DatasetsCorpus(tables=(table,)))) == 1


def answers_table(tmp_path: Path, answers: list[float | str | None], **columns: str) -> Table:
    """A table of a compressed local file with a plain answer a row."""
    path = tmp_path / "plain.jsonl.gz"
    rows = ({"problem": f"{i}?", "answer": answer} for i, answer in enumerate(answers))
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    fields = {"name": "plain", "path": (path,), "question": "problem", "types": ("plain",)}
    return Table(**fields | columns)


@pytest.mark.parametrize(
    ("answers", "golds"),
    [
        (["240", " 1,000. ", r"$\frac{1}{2}$", r"\boxed{5}", "#### 7"], None),
        (["240", "", None, "9^{9^{9}}", "3"], ["240", "3"]),
        ([240, None, 7], ["240", "7"]),
        ([0.5, None, 2.25], ["0.5", "2.25"]),
    ],
    ids=["texts", "texts without an answer", "whole numbers", "fractions"],
)
def test_plain_answers_are_golds_as_they_stand(
    tmp_path: Path, answers: list[float | str | None], golds: list[str] | None
) -> None:
    table = answers_table(tmp_path, answers, answer="answer")
    corpus = load_corpus(DatasetsCorpus(tables=(table,)))
    expected = golds or ["240", "1,000", r"\frac{1}{2}", "5", "7"]
    assert [question.gold for question in corpus.by_type["plain"]] == expected
    assert corpus.skipped == len(answers) - len(expected)


def test_a_table_has_solutions_or_answers(tmp_path: Path) -> None:
    for columns in ({}, {"solution": "answer", "answer": "answer"}):
        with pytest.raises(ValidationError, match="name one of them"):
            answers_table(tmp_path, ["1"], **columns)


def test_b18_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    table = Table(**DatasetsCorpus().tables[1].model_dump() | {"path": (tmp_path / "no.jsonl",)})
    with pytest.raises(DataError, match=r"'AI-MO/NuminaMath-TIR', split 'train.0:500.', cannot be"):
        load_corpus(DatasetsCorpus(tables=(table,)))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    metamath, numina = tables(tmp_path, METAMATH_ROWS, NUMINA_ROWS)
    table = Table(**numina.model_dump() | {"solution": "answer"})
    with pytest.raises(DataError, match="no column 'answer' among problem, solution, messages"):
        load_corpus(DatasetsCorpus(tables=(metamath, table)))


def test_a_table_without_golds_is_refused_beside_a_good_one(tmp_path: Path) -> None:
    rows = [{"problem": "?", "solution": "no"}]
    sentence = (
        "data set 'AI-MO/NuminaMath-TIR', split 'train[0:500]', holds no question of types "
        "NuminaMath_TIR with a gold answer in its columns 'problem', 'solution' (1 rows skipped); "
        "name the right columns and types under corpus.tables"
    )
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}$"):
        load_corpus(DatasetsCorpus(tables=tables(tmp_path, METAMATH_ROWS, rows)))


def test_a_type_without_questions_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metamath = tables(tmp_path, METAMATH_ROWS[:-1], NUMINA_ROWS)[0]
    load_corpus(DatasetsCorpus(tables=(metamath,)))
    assert f"split 'train[0:500]': no question of types {METAMATH_TYPES[-1]}" in caplog.text
    assert "skipped" not in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.jsonl", b"", "a file is empty"),
        ("blank.jsonl", b"\n", "corresponds to no data!"),
        ("bad.jsonl", b'{"problem": 1\nxx', "JSON parse error: Missing a comma or '}'"),
        ("rows.csv", b"problem,solution\n?,1\n", "JSON parse error: Invalid value"),
        ("cut.jsonl.gz", gzip.compress(b"{}", mtime=0)[:-4], "file ended before"),
    ],
    ids=["empty", "blank", "broken", "csv", "cut"],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    table = Table(**DatasetsCorpus().tables[1].model_dump() | {"path": (path,)})
    with pytest.raises(DataError, match=re.escape(reason)) as raised:
        load_corpus(DatasetsCorpus(tables=(table,)))
    assert f"check corpus.tables and that {path} holds JSONL, JSON or Parquet" in str(raised.value)


def test_the_offline_corpus_says_what_it_is() -> None:
    corpus = load_corpus(ArithmeticCorpus(per_type=3))
    assert corpus.source == "generated arithmetic, seed 0, training side"
    assert list(corpus.by_type) == [f"arithmetic_{n}" for n in range(2, 11)]
    for question in corpus.by_type["arithmetic_5"]:
        terms = re.findall(r"[+-]?\d", question.text)
        assert len(terms) == 5
        assert str(sum(map(int, terms))) == question.gold


def test_b13_one_corpus_per_process() -> None:
    assert load_corpus(ArithmeticCorpus()) is load_corpus(ArithmeticCorpus())


def corpus_of(*sizes: int) -> Corpus:
    by_type = {
        f"t{t}": tuple(Question(f"{t}-{i}", "?", "1", f"t{t}") for i in range(size))
        for t, size in enumerate(sizes)
    }
    return Corpus(by_type, "test")


def test_ten_questions_of_nine_types() -> None:
    chosen = sample_questions(corpus_of(*[50] * 9), 10, seed=7)
    assert sorted(Counter(q.type for q in chosen).values()) == [1] * 8 + [2]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=9),
    problems=st.integers(1, 30),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_mix_is_even_full_and_repeats_only_what_it_must(
    sizes: list[int], problems: int, seed: int
) -> None:
    corpus = corpus_of(*sizes)
    chosen = sample_questions(corpus, problems, seed)
    assert len(chosen) == problems
    counts = Counter(q.type for q in chosen)
    numbers = [counts[kind] for kind in corpus.by_type]
    assert max(numbers) - min(numbers) <= 1
    for kind, pool in corpus.by_type.items():
        distinct = {q.id for q in chosen if q.type == kind}
        assert len(distinct) >= min(len(pool), counts[kind])
    assert chosen == sample_questions(corpus, problems, seed)


def test_the_position_tells_nothing_about_the_type() -> None:
    corpus = corpus_of(*[50] * 9)
    first = Counter(sample_questions(corpus, 10, seed)[0].type for seed in range(900))
    assert len(first) == 9
    assert min(first.values()) > 60
