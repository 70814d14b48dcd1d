"""The served environment: a real process, real sockets, OpenEnv's own validator."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from economics_server import FOLDER, LocalProvider, Server, arithmetic, code, reset, session, step
from openenv.cli.__main__ import app as openenv_cli
from openenv.core import GenericEnvClient
from openenv.validation import Level, run_validation
from typer.testing import CliRunner

from rlsys.environments.economics import EconomicsClient, EconomicsEnvironment
from rlsys.environments.economics.models import EconomicsAction
from rlsys.environments.economics.rewards import reward_range

pytestmark = pytest.mark.slow

LONGEST_STEP_S = 5.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    served = Server()
    yield served
    served.stop()


def test_static_validation_passes() -> None:
    command = ["validate", str(FOLDER), "--level", "static", "--skip-build"]
    result = CliRunner().invoke(openenv_cli, command)
    assert result.exit_code == 0
    assert "Verdict: PASS" in result.output


def test_url_validation_passes(server: Server) -> None:
    result = CliRunner().invoke(openenv_cli, ["validate", "--url", server.url])
    assert result.exit_code == 0
    assert result.output.count("PASS") == 7
    assert "FAIL" not in result.output


def test_runtime_graders_find_no_fault() -> None:
    report = run_validation(FOLDER, max_level=Level.RUNTIME, provider=LocalProvider())
    statuses = {result.check_id: result.status.value for result in report.results}
    assert "fail" not in statuses.values()
    passed = {check for check, status in statuses.items() if status == "pass"}
    assert passed >= {
        "runtime.startup",
        "runtime.observation_schema",
        "runtime.reward_well_formed",
        "runtime.state_contract",
    }


def test_the_declared_reward_range_is_the_computed_one() -> None:
    import yaml

    declared = yaml.safe_load((FOLDER / "openenv.yaml").read_text())["validation"]["reward"]
    assert declared["range"] == list(reward_range(10))


def test_http_endpoints(server: Server) -> None:
    assert requests.get(f"{server.url}/metadata").json()["name"] == "economics"
    schema = requests.get(f"{server.url}/schema").json()
    assert "total_budget" in schema["observation"]["properties"]
    assert "spent_budget" in schema["state"]["properties"]
    assert requests.get(f"{server.url}/state").json()["spent_budget"] == 0
    early = requests.post(f"{server.url}/step", json={"action": {"response": "x"}})
    assert (early.status_code, early.json()["detail"]) == (
        422,
        "there is no episode to step; send a reset first",
    )
    wrong = requests.post(f"{server.url}/reset", json={"tokenizer_name": 5})
    assert wrong.status_code == 422
    assert wrong.json()["detail"][0]["loc"] == ["tokenizer_name"]


def test_b1_the_typed_client_plays_an_episode_to_its_end(server: Server) -> None:
    with EconomicsClient(base_url=server.url).sync() as client:
        result = client.reset(seed=3, total_budget=500, episode_id="mine")
        steps = 0
        while not result.done:
            answer = arithmetic(result.observation.question)
            result = client.step(EconomicsAction(response=f"\\boxed{{{answer}}}"))
            steps += 1
        assert steps == 10
        assert result.observation.accuracy_so_far == 1.0
        assert result.reward == pytest.approx(1.598 + 0.0, abs=1e-9)
        state = client.state()
        assert (state.episode_id, state.spent_budget, state.total_correct) == ("mine", 10, 10)


def test_the_generic_client_sees_declared_fields(server: Server) -> None:
    async def play() -> tuple[Any, Any]:
        async with GenericEnvClient(base_url=server.url) as client:
            result = await client.reset(seed=3, total_budget=500)
            return result, await client.step({"response": "x"})

    first, second = asyncio.run(play())
    assert first.observation["budget_source"] == "client"
    assert (second.reward, second.done) == (pytest.approx(-0.1), False)


def test_in_process_and_served_episodes_are_the_same(server: Server) -> None:
    local = EconomicsEnvironment().reset(seed=11, total_budget=300)
    with session(server.url) as ask:
        served = reset(ask, seed=11, total_budget=300)["data"]["observation"]
    assert served == local.model_dump(exclude={"reward", "done"})


BAD_FRAMES = [
    ({"type": "reset", "data": {"seed": "abc"}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"tokenizer_name": 5}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"total_budget": 0}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"total_budget": 5}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"tokenizer_name": "evil/repo"}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": {"unknown": 1}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"self": 1}}, "EXECUTION_ERROR"),
    ({"type": "reset", "data": [1]}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"answer": "x"}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"response": 5}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"response": "x", "metadata": {"a": 1}}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"response": "x" * 300_000}}, "EXECUTION_ERROR"),
    ({"type": "step", "data": {"response": "x" * 1_100_000}}, "VALIDATION_ERROR"),
    ({"type": "step"}, "VALIDATION_ERROR"),
    ({"type": "bogus"}, "UNKNOWN_TYPE"),
    ({"type": ["reset"]}, "UNKNOWN_TYPE"),
    ({}, "UNKNOWN_TYPE"),
    ("not json", "INVALID_JSON"),
    (b"\x00\xff", "INVALID_JSON"),
    ("[" * 100_000, "INVALID_JSON"),
    ('{"type": "reset", "data": {"seed": 1' + "0" * 5000 + "}}", "INVALID_JSON"),
    ('{"type": "reset", "data": {"seed": 1' + "0" * 400 + "}}", "VALIDATION_ERROR"),
    ('{"type": "reset", "data": {"seed": NaN}}', "VALIDATION_ERROR"),
    ('{"type": "step", "data": {"response": "\\ud800"}}', "VALIDATION_ERROR"),
    ('{"type": "step", "data": ' + '{"a":' * 100 + "1" + "}" * 101, "VALIDATION_ERROR"),
    ("[1, 2]", "VALIDATION_ERROR"),
    ("null", "VALIDATION_ERROR"),
]


def test_v21_v22_a_bad_frame_gets_a_typed_error_and_changes_nothing(server: Server) -> None:
    with session(server.url) as ask:
        reset(ask, seed=7, total_budget=500)
        before = ask({"type": "state"})
        for frame, expected in BAD_FRAMES:
            answer = ask(frame)
            assert (answer["type"], code(answer)) == ("error", expected), str(frame)[:60]
            assert 0 < len(answer["data"]["message"]) <= 500
            assert ask({"type": "state"}) == before
        assert step(ask, "x")["type"] == "observation"


LIST_TOOLS = {"jsonrpc": "2.0", "method": "tools/list", "id": 1}


def test_a_bad_frame_on_the_mcp_socket_gets_an_error_and_the_socket_stays_open(
    server: Server,
) -> None:
    with session(server.url, path="/mcp") as ask:
        for frame, expected in (
            (b"\x00\xff", -32700),
            ("not json", -32700),
            ("[" * 100_000, -32700),
            ("[1, 2]", -32600),
            ("null", -32600),
            ("7", -32600),
            ('{"method": "\\ud800"}', -32600),
            ('{"jsonrpc": ' + '{"a":' * 100 + "1" + "}" * 101, -32600),
            ({"jsonrpc": "2.0"}, -32600),
        ):
            answer = ask(frame)
            assert answer["jsonrpc"] == "2.0"
            assert answer["error"]["code"] == expected, str(frame)[:60]
            assert answer["error"]["message"]
            assert ask(LIST_TOOLS)["id"] == 1


def test_seeds_up_to_the_largest_exact_integer_are_played_and_reported(server: Server) -> None:
    with session(server.url) as ask:
        questions = set()
        for seed in (0, 2**52 - 1, 2**52, 2**53 - 2, 2**53 - 1):
            answer = reset(ask, seed=seed)["data"]["observation"]
            assert answer["seed"] == seed
            assert ask({"type": "state"})["data"]["seed"] == seed
            questions.add(answer["question"])
        assert len(questions) > 1
        assert code(reset(ask, seed=2**53)) == "VALIDATION_ERROR"


def test_serve_env_prints_the_port_that_it_has_bound() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "rlsys", "serve-env", "port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = re.match(r"economics environment at (http://127\.0\.0\.1:(\d+)): ", line)
            assert url and int(url[2]) > 0, line
            assert requests.get(f"{url[1]}/health", timeout=30).status_code == 200
        finally:
            process.terminate()


def test_v23_step_before_reset(server: Server) -> None:
    with session(server.url) as ask:
        assert ask({"type": "state"})["data"]["spent_budget"] == 0
        answer = step(ask, "x")
        assert (code(answer), answer["data"]["message"]) == (
            "EXECUTION_ERROR",
            "there is no episode to step; send a reset first",
        )
        assert reset(ask, seed=1)["type"] == "observation"


def test_v16_step_after_the_end(server: Server) -> None:
    with session(server.url) as ask:
        reset(ask, seed=1, total_budget=20)
        last = step(ask, "word " * 40)
        state = ask({"type": "state"})
        assert last["data"]["done"]
        after = step(ask, "word")
        assert (after["data"]["reward"], after["data"]["done"]) == (0.0, True)
        assert ask({"type": "state"}) == state


HOSTILE = [
    "\\boxed{9**9**9}",
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{" + "9^" * 5000 + "9}",
    "\\boxed{().__class__.__bases__[0].__subclasses__()}",
    "{" * 250_000,
    "\\boxed{" * 30_000,
    "\\boxed{" + "(" * 1000 + "1" + ")" * 1000 + "}",
    "\\boxed{" + "\\sqrt{" * 400 + "2" + "}" * 400 + "}",
    "\\boxed{\\sum_{n=1}^{1000000000} n! + x^{x^{x}}}",
    "\\boxed{(x+y+z+w)^{500}}",
    "\x00\x1b[2J\x07\\boxed{\x001}",
    "\u202e\\boxed{1}\u200b" * 1000,
]


def test_b5_hostile_text_never_takes_long_and_is_never_evaluated(
    server: Server, tmp_path: Path
) -> None:
    witness = tmp_path / "evaluated"
    code = f"\\boxed{{__import__('pathlib').Path({str(witness)!r}).touch()}}"
    with session(server.url) as ask:
        for text in [*HOSTILE, code]:
            reset(ask, seed=1, total_budget=10**8)
            start = time.monotonic()
            answer = step(ask, text)
            assert time.monotonic() - start < LONGEST_STEP_S, text[:60]
            assert answer["type"] == "observation", text[:60]
            assert not answer["data"]["observation"]["history"][0]["was_correct"], text[:60]
        first = reset(ask, seed=2)["data"]["observation"]["question"]
        honest = step(ask, f"\\boxed{{{arithmetic(first)}}}")
        assert honest["data"]["observation"]["accuracy_so_far"] == 1.0
    assert not witness.exists()
