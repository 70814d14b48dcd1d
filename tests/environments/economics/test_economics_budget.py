"""Budgets, token counts and the books: the three priorities, both units, the conservation law."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.budget import Budget, native_budget, resolve_budget
from rlsys.environments.economics.counting import (
    WORDS,
    TokenizerCounter,
    allowed_tokenizer,
    load_tokenizer,
)
from rlsys.environments.economics.errors import LedgerError, RequestError
from rlsys.environments.economics.ledger import Charge, Ledger
from rlsys.errors import ModelError


def test_v10_budget_from_the_configuration() -> None:
    for ratio, expected in ((2.0, 8100), (3.0, 12150), (4.0, 16200)):
        config = EconomicsConfig(budget_ratio=ratio)
        budget = resolve_budget(config, ["?"] * 10, total_budget=None, tokenizer=None)
        assert budget == (expected, "config")
    assert EconomicsConfig().config_budget == 16200


def test_v11_budget_from_the_questions() -> None:
    for tokens, ratio, expected in (
        (613, 2.0, 1226),
        (613, 3.0, 1839),
        (613, 4.0, 2452),
        (7, 2.5, 17),
        (30, 4.0, 120),
    ):
        assert native_budget(tokens, ratio) == expected


class Words:
    unit = "words"

    def count(self, text: str) -> int:
        return len(text.split())

    def prefix(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])


def test_v11_ten_questions_of_three_words() -> None:
    config = EconomicsConfig(budget_ratio=4.0)
    questions = ["what is this"] * 10
    budget = resolve_budget(config, questions, total_budget=None, tokenizer=Words())
    assert budget == Budget(120, "tokenizer_native")


def test_v12_the_clients_number_comes_first() -> None:
    budget = resolve_budget(EconomicsConfig(), ["?"], total_budget=1000, tokenizer=Words())
    assert budget == Budget(1000, "client")


def test_b7_a_budget_below_min_tokens_is_refused_in_hard_mode_only() -> None:
    with pytest.raises(RequestError, match="total_budget 5 is less than 10"):
        resolve_budget(EconomicsConfig(), ["?"], total_budget=5, tokenizer=None)
    soft = EconomicsConfig(mode="soft")
    assert resolve_budget(soft, ["?"], total_budget=5, tokenizer=None) == Budget(5, "client")


def test_a_native_budget_always_pays_for_one_answer() -> None:
    config = EconomicsConfig(problems=1)
    assert resolve_budget(config, ["?"], total_budget=None, tokenizer=Words()).tokens == 10


def test_a_configured_budget_below_min_tokens_is_refused() -> None:
    with pytest.raises(ValidationError, match="less than min_tokens 10"):
        EconomicsConfig(total_budget=9)


def test_v15_words_without_a_tokenizer() -> None:
    for text, tokens in (("", 1), ("a", 1), ("a b c", 3), ("w " * 10, 13), ("w " * 631, 839)):
        assert WORDS.count(text) == tokens
    assert WORDS.unit == "words*1.33"


@given(text=st.text("ab \n\t", max_size=60), tokens=st.integers(0, 40))
def test_words_bought_are_the_most_that_fit(text: str, tokens: int) -> None:
    kept = WORDS.prefix(text, tokens)
    assert text.startswith(kept)
    assert WORDS.count(kept) <= max(1, tokens)
    words = text.split()
    if tokens > 0 and len(kept.split()) < len(words):
        assert WORDS.count(" ".join(words[: len(kept.split()) + 1])) > tokens


def test_tokens_of_the_tiny_model() -> None:
    counter = load_tokenizer("tiny")
    assert counter.unit == "tokens of tiny"
    assert counter.count("") == 0
    assert counter.count("3+8-2") == 5
    assert counter.prefix("3+8-2", 3) == "3+8"
    assert counter.prefix("3+8-2", 0) == ""
    assert counter.prefix("3+8-2", 9) == "3+8-2"


def word_tokenizer(folder: Path) -> str:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def test_a_folder_with_a_tokenizer_counts_untruncated(tmp_path: Path) -> None:
    counter = TokenizerCounter(word_tokenizer(tmp_path))
    assert counter.count("a  b c") == 3
    assert counter.prefix("a  b c", 2) == "a  b"


def test_b5_only_listed_tokenizers_are_loaded() -> None:
    with pytest.raises(RequestError, match=r"'evil/repo' is not allowed here; use one of tiny, x"):
        allowed_tokenizer("evil/repo", ("tiny", "x"))


def test_b5_code_beside_a_tokenizer_never_runs(tmp_path: Path) -> None:
    name = word_tokenizer(tmp_path)
    witness = tmp_path / "ran"
    (tmp_path / "tokenization_evil.py").write_text(f"open({str(witness)!r}, 'w')")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}})
    )
    assert allowed_tokenizer(name, (name,)).count("a b") == 2
    assert not witness.exists()


def test_b6_a_tokenizer_that_fails_to_load_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        allowed_tokenizer(str(tmp_path), (str(tmp_path),))


class Hub(ThreadingHTTPServer):
    """Down at first; `asked` counts requests for its tokenizer."""

    asked = 0
    down = True


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one tokenizer."""
    word_tokenizer(tmp_path)
    body = (tmp_path / "tokenizer.json").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            server.asked += self.path.endswith("/tokenizer.json")
            self.send_response(503 if server.down else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"e"')
            self.send_header("X-Repo-Commit", "c" * 40)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(body)

        def log_message(self, *args: str) -> None:
            pass

    server = Hub(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


ASKED_AGAIN_AND_AGAIN = """
from rlsys.environments.economics import counting
from rlsys.errors import ModelError

def sentence():
    try:
        counting.load_tokenizer("some/one")
    except ModelError as error:
        return str(error)

print(sentence() == sentence() == sentence(), sentence(), flush=True)
input()
print(sentence())
counting.FAILURE_MEMORY_S = 0.0
print(counting.load_tokenizer("some/one").count("a b"), flush=True)
input()
print(counting.TokenizerCounter("some/one").count("a b"), flush=True)
"""


def test_a_hub_that_is_away_is_asked_once_a_minute(hub: Hub, tmp_path: Path) -> None:
    # A process of its own, for the library reads where the hub is when it is imported.
    hub_settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ASKED_AGAIN_AND_AGAIN],
        env=os.environ | hub_settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        def go_on() -> None:
            stdin.write("\n")
            stdin.flush()

        line = stdout.readline()
        assert re.match("True tokenizer 'some/one' cannot be loaded .*503", line)
        assert hub.asked == 1
        hub.down = False
        go_on()
        assert "503" in stdout.readline()
        assert stdout.readline() == "2\n"
        hub.down, asked = True, hub.asked
        go_on()
        assert stdout.readline() == "2\n"
        assert hub.asked == asked  # what was fetched before is read without the hub


def test_books_of_a_capped_episode() -> None:
    ledger = Ledger(100).charge(60, capped=True).charge(500, capped=True).charge(7, capped=True)
    assert ledger.charges == (Charge(60, 60), Charge(500, 40), Charge(7, 0))
    assert [charge.refused for charge in ledger.charges] == [0, 460, 7]
    assert (ledger.spent, ledger.remaining) == (100, 0)


def test_books_of_an_uncapped_episode() -> None:
    ledger = Ledger(100).charge(60, capped=False).charge(500, capped=False)
    assert (ledger.spent, ledger.remaining) == (560, -460)
    assert ledger.charges[1].refused == 0


def test_every_charged_token_is_trained_or_masked() -> None:
    ledger = Ledger(100).charge(60, capped=True).charge(500, capped=True)
    ledger.settle([60, 30], [{}, {"length": 10}])
    with pytest.raises(LedgerError, match=r"answer 1: 40 tokens were charged, but 30 trained"):
        ledger.settle([60, 30], [{}, {"length": 9}])
    with pytest.raises(LedgerError, match="2 answers were charged, but 1 have trained"):
        ledger.settle([60], [{}])


@given(
    budget=st.integers(1, 1000),
    answers=st.lists(st.integers(0, 400), max_size=12),
    capped=st.booleans(),
)
def test_nothing_is_charged_twice_or_lost(budget: int, answers: list[int], capped: bool) -> None:
    ledger = Ledger(budget)
    for generated in answers:
        ledger = ledger.charge(generated, capped=capped)
    assert sum(c.charged + c.refused for c in ledger.charges) == sum(answers)
    assert ledger.spent + ledger.remaining == budget
    assert not capped or 0 <= ledger.spent <= budget
