"""The example environment and method with a scripted engine: trees, scores, what is trained."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import OTHER, PROMPT, RIGHT, FixedPrompt, RightIfItSaysSo, decode, sample
from typer.testing import CliRunner

from rlsys.algorithms.samples import build_samples
from rlsys.cli.app import app
from rlsys.config.loading import load_config
from rlsys.environments.base import RolloutContext
from rlsys.environments.registry import environment_class
from rlsys.tokenization.tokenizer import eos_ids, load_tokenizer
from rlsys.types import Completion, GenerationRequest, Kind, Problem, Verdict

ROOT = Path(__file__).parents[2]
YAML = ROOT / "examples" / "two_tries" / "two_tries.yaml"
TOKENIZER = load_tokenizer("tiny")
EOS = eos_ids(TOKENIZER)[0]
PAGE = ROOT / "docs" / "own-environment.md"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import paths are looked up in the current directory too."""
    monkeypatch.chdir(ROOT)


class Wavering:
    """Right at once in episode 0; wrong at first in the others, and right in the second try."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests.extend(requests)
        if requests and requests[0].n > 1:
            (request,) = requests
            replies = [[RIGHT, EOS]] + [[OTHER, EOS]] * (request.n - 1)
            return [[sample(request, reply, engine=2) for reply in replies]]
        return [[sample(request, [RIGHT, EOS])] for request in requests]


def rollout() -> tuple[Any, Any, Wavering]:
    config = load_config(YAML, ["batch.group_size=3"])
    engine = Wavering()
    context = RolloutContext(
        config=config,
        role="training",
        tokenizer=TOKENIZER,
        decode=decode,
        renderer=FixedPrompt(),  # type: ignore[arg-type]
        generator=engine,
        grader=RightIfItSaysSo(),
        max_length=512,
    )
    environment = environment_class(config).create(context)
    group = asyncio.run(environment.rollout(4, Problem(id="p", text="", answer="")))
    return config, group, engine


def test_a_wrong_reply_gets_an_observation_and_a_second_try() -> None:
    _, group, engine = rollout()
    assert [[s.kind for s in e.segments] for e in group.episodes] == [
        [Kind.PROMPT, Kind.ANSWER],
        [Kind.PROMPT, Kind.ANSWER, Kind.OBSERVATION, Kind.ANSWER],
        [Kind.PROMPT, Kind.ANSWER, Kind.OBSERVATION, Kind.ANSWER],
    ]
    assert [e.scores.tolist() for e in group.episodes] == [[1.0], [0.5], [0.5]]
    assert {int(v) for e in group.episodes for v in e.verdicts} == {Verdict.RIGHT}
    seconds = engine.requests[1:]
    observation = group.episodes[1].segments[2].token_ids
    assert seconds[0].token_ids.tolist() == [*PROMPT, OTHER, EOS, *observation]
    assert [request.engine for request in seconds] == [2, 2]
    assert len({request.seed for request in engine.requests}) == 3


def test_every_sampled_token_gets_the_leave_one_out_advantage() -> None:
    config, group, _ = rollout()
    samples = build_samples(group, config)
    assert [None if a is None else a.tolist() for a in samples[0].advantages] == [None, [0.5] * 2]
    assert [None if a is None else a.tolist() for a in samples[1].advantages] == [
        *(None, [-0.25] * 2),
        *(None, [-0.25] * 2),
    ]
    assert np.isclose(sum(s.advantages[1][0] for s in samples), 0)  # type: ignore[index]


def test_the_page_shows_the_files_as_they_are() -> None:
    code = YAML.with_suffix(".py").read_text() + YAML.read_text()
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        assert block in code, block


def test_the_dry_run_of_the_page_passes() -> None:
    (command,) = re.findall(r"^rlsys (.* --dry-run)$", PAGE.read_text(), re.MULTILINE)
    shown = CliRunner().invoke(app, command.split())
    assert shown.exit_code == 0, shown.output
    assert "training and 64 held-out problems" in shown.output


@pytest.mark.slow
def test_the_files_train_from_outside_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied into a project of somebody else, they train two steps through real Ray."""
    from commands import Command

    shutil.copytree(YAML.parent, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    command = Command(
        tmp_path / "run",
        "train",
        "two_tries.yaml",
        "environment.type=two_tries:TwoTries",
        "algorithm.method=two_tries:LeaveOneOut",
        *("steps=2", "batch.problems=2", "evaluation.problems=4"),
    )
    assert command.wait() == 0, command.output
    assert [row["step"] for row in command.steps()] == [1, 2]
    assert (tmp_path / "run" / "export" / "model.safetensors").is_file()
