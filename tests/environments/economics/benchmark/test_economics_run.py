"""`rlsys eval economics` from the command line to its files, and everything it refuses."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from chat_server import chat_server
from economics_server import Server, free_port
from typer.testing import CliRunner
from websockets.sync.server import ServerConnection, serve

from rlsys.cli.app import app
from rlsys.config import EconomicsEvaluationConfig
from rlsys.config.economics_benchmark import LocalModelConfig
from rlsys.environments.economics.benchmark.results import (
    EpisodeResult,
    read_results,
    write_results,
)
from rlsys.environments.economics.benchmark.run import OpenEngine, results_table, run_benchmark
from rlsys.errors import UserError

run_cli = CliRunner()


def no_engine(config: LocalModelConfig, length: int) -> NoReturn:
    raise AssertionError("no agent of these tests has a local model")


def run(
    config: EconomicsEvaluationConfig,
    added: Sequence[Path] = (),
    open_engine: OpenEngine = no_engine,
) -> Mapping[str, Sequence[EpisodeResult]]:
    return asyncio.run(run_benchmark(config, added, open_engine, lambda line: None))


def settings(tmp_path: Path, **changes: Any) -> EconomicsEvaluationConfig:
    fields = {
        "episodes": 8,
        "warmup": 4,
        "total_budget": 180,
        "max_allocation": 80,
        "out": tmp_path / "out",
        **changes,
    }
    return EconomicsEvaluationConfig(**fields)


def test_b1_b20_agents_are_paired_and_the_oracle_is_never_beaten(tmp_path: Path) -> None:
    raw = run(settings(tmp_path))
    assert list(raw) == ["uniform", "greedy_max", "difficulty_oracle", "bandit"]
    for episodes in raw.values():
        assert [episode.seed for episode in episodes] == list(range(42, 50))
        for episode in episodes:
            assert (episode.budget, episode.questions, len(episode.types)) == (180, 10, 10)
            assert episode.oracle is not None
            assert episode.total_reward <= episode.oracle + 1e-9
            assert episode.spent <= 180
    oracles = [[episode.oracle for episode in episodes] for episodes in raw.values()]
    assert oracles == [oracles[0]] * 4
    summary = json.loads((tmp_path / "out" / "results.json").read_text())["summary"]
    assert summary["greedy_max"]["regret"]["low"] > 0
    assert summary["greedy_max"]["accuracy"]["mean"] > summary["uniform"]["accuracy"]["mean"]
    assert "greedy_max" in str(results_table(raw).columns[0]._cells)


def test_the_same_settings_give_the_same_results(tmp_path: Path) -> None:
    agents = ("bandit",)
    first = run(settings(tmp_path, agents=agents))
    assert run(settings(tmp_path, agents=agents)) == first
    assert run(settings(tmp_path, agents=agents, warmup=0)) != first


def test_with_enough_for_everything_nothing_is_regretted(tmp_path: Path) -> None:
    raw = run(settings(tmp_path, agents=("uniform",), total_budget=2000, episodes=2))
    for episode in raw["uniform"]:
        assert all(episode.right)
        assert episode.oracle == pytest.approx(episode.total_reward)


def test_fillers_have_an_estimated_oracle(tmp_path: Path) -> None:
    raw = run(settings(tmp_path, agents=("uniform",), solver="filler"))
    assert all(episode.oracle is not None for episode in raw["uniform"])


def test_a_served_environment_gives_the_same(tmp_path: Path) -> None:
    agents = ("uniform", "bandit")
    local = run(settings(tmp_path, agents=agents, episodes=3))
    variables: dict[str, Any] = {
        "ECONOMICS_REVEAL_TYPE": "true",
        "ECONOMICS_CORPUS": "{source: arithmetic, held_out: true}",
    }
    server = Server(**variables)
    try:
        config = settings(tmp_path, agents=agents, episodes=3, url=server.url)
        assert run(config) == local
        soft = config.environment.model_copy(update={"mode": "soft"})
        with pytest.raises(UserError, match=r"environment.mode is soft.* plays with hard; set"):
            run(config.model_copy(update={"environment": soft}))
    finally:
        server.stop()


def test_a_server_with_other_rules_or_hidden_types_is_refused(tmp_path: Path) -> None:
    server = Server(ECONOMICS_RULES="compat", ECONOMICS_COEFFICIENTS="D2")
    try:
        config = settings(tmp_path, agents=("uniform", "difficulty_oracle"), url=server.url)

        def playing(**changes: str) -> EconomicsEvaluationConfig:
            environment = config.environment.model_copy(update=changes)
            return config.model_copy(update={"environment": environment})

        with pytest.raises(
            UserError, match=r"environment.rules is default.* plays with compat; set"
        ):
            run(config)
        with pytest.raises(UserError, match=r"environment.coefficients is D.* plays with D2; set"):
            run(playing(rules="compat"))
        likewise = playing(rules="compat", coefficients="D2")
        remedy = (
            r"the server at http.* hides; start it with rlsys serve-env environment.reveal_type"
        )
        with pytest.raises(UserError, match=remedy):
            run(likewise)
        assert not config.out.exists()
        lines: list[str] = []
        likewise = likewise.model_copy(update={"agents": ("uniform",), "episodes": 1})
        asyncio.run(run_benchmark(likewise, [], no_engine, lines.append))
    finally:
        server.stop()
    source = "generated arithmetic, seed 0, training side"
    recorded = json.loads((config.out / "results.json").read_text())["settings"]
    assert recorded["data_source"] == source
    assert "corpus" not in recorded["environment"]
    assert lines[0] == f"questions: {source}"


def test_observations_of_something_else_are_refused(tmp_path: Path) -> None:
    def reply(socket: ServerConnection) -> None:
        for _ in socket:
            data = {"observation": {"question": "?"}, "reward": 0.0, "done": False}
            socket.send(json.dumps({"type": "observation", "data": data}))

    with serve(reply, "127.0.0.1", 0) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.socket.getsockname()[1]}"
        with pytest.raises(UserError, match=r"not of the economics environment .remaining_b"):
            run(settings(tmp_path, url=url))
        other.shutdown()


def test_endpoints_play_beside_baselines_and_only_if_asked(tmp_path: Path) -> None:
    with chat_server() as chat:
        good = {"name": "good", "base_url": chat.base_url, "model": "m", "retries": 0}
        endpoints = (good, good | {"name": "unasked", "api_key_env": "NO_SUCH_KEY"})
        chat.failing = lambda number, body: 500 if number % 5 == 0 else None
        agents = ("uniform", "good")
        raw = run(settings(tmp_path, agents=agents, endpoints=endpoints, episodes=3))
    assert list(raw) == ["uniform", "good"]
    failures = sum(episode.failures for episode in raw["good"])
    assert failures == len(chat.requests) // 5
    right = sum(sum(episode.right) for episode in raw["good"])
    assert right == 30 - failures


def test_a_dead_endpoint_is_found_before_any_agent_plays(tmp_path: Path) -> None:
    dead = {"name": "dead", "base_url": f"http://127.0.0.1:{free_port()}/v1", "model": "m"}
    config = settings(tmp_path, agents=("uniform", "dead"), endpoints=(dead | {"retries": 0},))
    with pytest.raises(UserError, match=r"endpoint 'dead' at .* does not answer"):
        run(config)
    assert not config.out.exists()


def test_results_from_files_are_added(tmp_path: Path) -> None:
    ours = run(settings(tmp_path, agents=("uniform",)))["uniform"]
    trained = [
        EpisodeResult(
            seed=episode.seed,
            questions=10,
            budget=180,
            tokens=episode.tokens[:5],
            right=episode.right[:5],
            rewards=episode.rewards[:5],
            types=episode.types[:5],
        )
        for episode in ours
    ]
    foreign = [EpisodeResult(seed=1, questions=1, budget=5, tokens=(), right=(), rewards=())]
    path = tmp_path / "trained.json"
    write_results(path, {"trained": trained, "foreign": foreign})
    raw = run(settings(tmp_path, agents=("uniform",)), [path])
    assert list(raw) == ["uniform", "trained", "foreign"]
    assert [len(episode.types) for episode in raw["trained"]] == [10] * 8
    assert all(episode.oracle is not None for episode in raw["trained"])
    assert raw["foreign"] == foreign
    assert read_results(tmp_path / "out" / "results.json") == raw
    assert list(run(settings(tmp_path, agents=()), [path])) == ["trained", "foreign"]
    with pytest.raises(UserError, match="holds results of 'trained', but there is already"):
        run(settings(tmp_path, agents=()), [path, path])


REFUSED = {
    "agent": (["agents=[uniforn]"], "'uniforn', which is none of uniform, greedy_max, difficulty"),
    "twice": (["agents=[bandit, bandit]"], "agents names 'bandit' twice"),
    "nobody": (["agents=[]"], "there is no agent to evaluate"),
    "bounds": (["min_allocation=900"], "rlsys: the command line: min_allocation 900 exceeds max_"),
    "seed": (["seed=9007199254740991"], "seed 9007199254740991 leaves too few seeds"),
    "types": (
        ["environment.reveal_type=false"],
        "which the environment hides; set environment.reveal_type=true, or remove difficulty",
    ),
    "no token": (
        ["environment.mode=soft", "environment.budget_ratio=0.0001"],
        "budget_ratio 0.0001 gives a budget of 0 tokens; raise it or set total_budget",
    ),
    "endless": (["environment.budget_ratio=.inf"], "environment.budget_ratio"),
    "out": (["out=/dev/null/x"], "out /dev/null/x cannot be a folder (Not a directory); name"),
    "budget": (["total_budget=5"], "total_budget 5 is less than 10"),
    "key": (["episode=5"], "unknown key 'episode' on the command line; did you mean 'episodes'"),
    "server": (["url=http://127.0.0.1:9"], "no economics server answers at http://127.0.0.1:9"),
    "file": (["--add", "/no/such.json"], "cannot read the results /no/such.json"),
    "model": (
        ["agents=[x]", "models=[{name: x, model: {path: /no/model}}]"],
        "model folder '/no/model' does not exist",
    ),
}


def test_bad_input_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for words, sentence in REFUSED.values():
        result = run_cli.invoke(app, ["eval", "economics", f"out={tmp_path / 'out'}", *words])
        assert result.exit_code == 2, (result.output, result.exception)
        (line,) = result.stderr.splitlines()
        assert sentence in line, words
        assert not (tmp_path / "out").exists(), words


def test_the_adder_refuses_what_it_cannot_add(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "What is 1+1?", "s": "The answer is: 2"}\n' * 3)
    table = f"{{name: t, path: ['{rows}'], question: q, solution: s, types: [t]}}"
    words = [
        "environment.corpus.source=datasets",
        f"environment.corpus.tables=[{table}]",
        f"out={tmp_path / 'out'}",
    ]
    result = run_cli.invoke(app, ["eval", "economics", *words])
    assert result.exit_code == 2, (result.output, result.exception)
    assert "sums of one-digit numbers, not 'What is 1+1?'; set solver=filler" in result.stderr


def test_the_command_writes_numbers_and_plots_without_ray(tmp_path: Path) -> None:
    words = ["economics", "episodes=2", "warmup=1", "total_budget=180", f"out={tmp_path}"]
    code = (
        "import sys; from rlsys.cli.app import app\n"
        f"app(['eval', *{words!r}], standalone_mode=False)\n"
        "assert not {'ray', 'vllm', 'openai'} & set(sys.modules), sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "wrote results.json and 7 plots" in " ".join(done.stdout.split())
    assert len(list(tmp_path.glob("*.png"))) == 7


def test_eval_of_a_file_is_what_it_was(tmp_path: Path) -> None:
    result = run_cli.invoke(app, ["eval", str(tmp_path / "none.yaml")])
    assert "cannot read the configuration" in result.stderr
    assert "economics" in run_cli.invoke(app, ["eval", "economics", "--help"]).output
    assert "CONFIG.yaml" in run_cli.invoke(app, ["eval", "--help"]).output


@pytest.mark.slow
def test_a_local_model_plays_in_a_real_engine(tmp_path: Path) -> None:
    from rlsys.launch.local_model import LocalModel

    tiny = {
        "name": "tiny",
        "prompt": {"template": "{problem}"},
        "max_tokens": 8,
        "generation": {"kv_cache_mib": 64},
    }
    environment = {"problems": 4, "min_tokens": 5, "tokenizer": "tiny", "trusted": True}
    raw = run(
        settings(
            tmp_path,
            agents=("tiny",),
            models=(tiny,),
            environment=environment,
            episodes=2,
            total_budget=30,
        ),
        open_engine=LocalModel,
    )
    # Thoughts are longer than 8 tokens, and what is charged is what was sampled.
    assert [episode.tokens for episode in raw["tiny"]] == [(8, 8, 8, 6)] * 2
    assert [episode.failures for episode in raw["tiny"]] == [0, 0]
