"""A folder of files as people have them: each loads or is refused in one sentence."""

import os
from pathlib import Path

import pytest

from rlsys.config import FileData
from rlsys.data.problems import load_problems
from rlsys.errors import DataError

CASES = Path(os.environ.get("RLSYS_CASES", Path(__file__).parents[3] / "shared/cases")) / "data"

GOLDS = {
    "array.json": ["3"],
    "array.json.gz": ["3"],
    "bom.jsonl": ["3", "4"],
    "columns.json": ["3", "4"],
    "crlf.jsonl": ["3", "4"],
    "decimal.parquet": ["3.50"],
    "jsonl_as.json": ["3", "4"],
    "list.jsonl": ["3"],
    "notgz.jsonl.gz": ["3"],
    "object_of_rows.json": ["3"],
    "rows.JSONL": ["3"],
    "rows.csv": ["3"],
    "rows.tsv": ["3"],
    "saved": ["3"],
    "saved_dict": ["3"],
    "unicode 数据.jsonl": ["3"],
}
REFUSED = {
    "bool.jsonl": "line 1: column 'answer' must hold a text or a number, not True",
    "case.jsonl": "data.*.problem_column=Problem",
    "dupkey.jsonl": "line 1: key 'answer' occurs twice",
    "html.parquet": "a web page",
    "latin1.jsonl": "line 1: byte 0xe9 is not UTF-8",
    "lfs.jsonl": "git lfs pull",
    "nan.jsonl": "line 1: column 'answer' must hold a text or a number, not nan",
    "null.jsonl": "line 2: column 'answer' must hold a text or a number, not None",
    "surrogate.jsonl": "line 1: column 'problem' holds half a surrogate pair",
    "trailingcomma.jsonl": "line 1: not a line of JSON (a comma after the object)",
    "verl.parquet": "data.*.answer_column=reward_model.ground_truth",
}


@pytest.mark.skipif(not CASES.is_dir(), reason="RLSYS_CASES names no folder of cases")
def test_every_case_loads_or_is_refused_in_one_sentence() -> None:
    for path in sorted(CASES.iterdir()):
        try:
            found = [problem.answer for problem in load_problems(FileData(path=(path,)))]
            assert found == GOLDS.get(path.name, found), path.name
            assert path.name not in REFUSED
        except DataError as error:
            sentence = str(error)
            assert path.name in sentence and "\n" not in sentence, sentence
            assert REFUSED.get(path.name, "") in sentence
            assert path.name not in GOLDS, sentence
