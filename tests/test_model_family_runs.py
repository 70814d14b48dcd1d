"""Models whose `</think>` is several tokens: episodes from a real engine, and whole runs.

One engine and one run per family; all checks of a family share them.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import yaml
from commands import Command
from cpu_engine import cpu_spec
from families import END, FAMILIES, Family, build_family, build_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from actors.generation import GenerationActor
from actors.vllm_settings import engine_environment
from learner.logprobs import load_policy
from learner.packing import flatten, pack_rows
from rlsys.algorithms.tree_samples import THOUGHT, whole_episode
from rlsys.config import AnytimeConfig, PromptConfig
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Episode, GradingRequest, Kind, Problem, Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUDGETS = (6, 16, 40)
CLOSING, HEADER = "...\n\n", "\n\n**Final Answer**\n\\boxed{"


class AlwaysRight:
    async def grade(self, requests: list[GradingRequest]) -> list[Verdict]:
        return [Verdict.RIGHT for _ in requests]


@dataclass(frozen=True)
class Played:
    """Episodes that a real engine sampled, and what they were sampled with."""

    environment: AnytimeEnvironment
    episodes: tuple[Episode, ...]
    folder: Path

    def text(self, token_ids: np.ndarray) -> str:
        return self.environment.sampler.think.end.decode(token_ids.tolist())


def play(folder: Path, think_end: str | None) -> Played:
    """Sample a group of 24 episodes on one engine."""
    tokenizer = load_tokenizer(str(folder))
    section = AnytimeConfig(think_end=think_end, closing=CLOSING, answer_header=HEADER)
    variables = engine_environment(on_gpu=False, threads=1)
    variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    with mock.patch.dict(os.environ, variables), asyncio.Runner() as runner:
        actor = GenerationActor(cpu_spec(folder))
        environment = AnytimeEnvironment(
            sampler=ThoughtSampler(
                think=ThinkTokens.resolve(tokenizer, section),
                decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
                temperature=1.0,
                generator=actor,
                grader=AlwaysRight(),  # type: ignore[arg-type]
            ),
            renderer=PromptRenderer(tokenizer, PromptConfig()),
            budgets=BUDGETS,
            answers=2,
            answer_tokens=5,
            group_size=24,
            seed=3,
        )
        try:
            runner.run(actor.start(serve=True))
            problem = Problem(id="p", text="3+8-2", answer="9")
            group = runner.run(environment.rollout(0, problem))
        finally:
            runner.run(actor.close())
    return Played(environment, group.episodes, folder)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    name: Family = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_family(family, tmp_path_factory.mktemp("models") / family)


def test_thoughts_end_with_the_text_and_keep_their_sampled_ids(folder: Path) -> None:
    played = play(folder, END)
    sampler = played.environment.sampler
    end_ids = sampler.think.end.token_ids
    assert len(end_ids) == 5
    forced_where_cut = np.concatenate(
        [sampler.think.closing_ids, end_ids, sampler.think.header_ids]
    )
    spellings = set()
    for episode in played.episodes:
        thought = episode.segments[THOUGHT].token_ids
        written = played.text(thought)
        closed = sampler.think.closes(thought)
        assert closed == (END in written)
        if closed:
            count = sampler.think.end.closing_tokens(thought)
            spelling = thought[len(thought) - count :]
            spellings.add(tuple(spelling.tolist()))
            # The last token completes the end: without it there is none.
            assert END not in played.text(thought[:-1])
            assert END in played.text(spelling)
            assert END not in played.text(spelling[1:])
        else:
            assert len(thought) == BUDGETS[-1] or thought[-1] in sampler.think.eos_ids
        for forced in (s for s in episode.segments if s.kind is Kind.FORCED):
            whole = closed and forced.cut == len(thought)
            expected = sampler.think.header_ids if whole else forced_where_cut
            assert forced.token_ids.tolist() == expected.tolist()
            assert whole or forced.cut in BUDGETS or forced.cut == len(thought)
    assert tuple(end_ids.tolist()) in spellings
    assert len(spellings) > 1  # other tokens spell the same text: `.</` and `>\n\n`
    check_logprobs(played)


def test_without_a_tag_eos_ends_a_thought_and_is_left_out_before_answers(folder: Path) -> None:
    played = play(folder, None)
    think = played.environment.sampler.think
    assert think.cut_ids.tolist() == [*think.closing_ids, *think.header_ids]
    ended = 0
    for episode in played.episodes:
        thought = episode.segments[THOUGHT].token_ids
        last = [s for s in episode.segments if s.kind is Kind.FORCED][-1]
        if think.closes(thought):
            ended += 1
            assert thought[-1] in think.eos_ids
            assert last.cut == len(thought) - 1
            assert last.token_ids.tolist() == think.header_ids.tolist()
        else:
            assert last.cut == len(thought) == BUDGETS[-1]
            assert last.token_ids.tolist() == think.cut_ids.tolist()
        assert episode.scores.all()
    assert ended
    check_logprobs(played)


def check_logprobs(played: Played) -> None:
    """The engine's log-probs, the learner's of packed trees and those of paths alone agree."""
    model = AutoModelForCausalLM.from_pretrained(played.folder, dtype=torch.float32)
    policy = load_policy(
        str(played.folder),
        dtype=torch.float32,
        device=torch.device("cpu"),
        gradient_checkpointing=False,
    )
    trees = [flatten(whole_episode(episode, 1.0)) for episode in played.episodes]
    rows = pack_rows([[tree] for tree in trees], max(len(tree.token_ids) for tree in trees))
    fields = (rows.token_ids, rows.positions, rows.parents, rows.exits, rows.trained)
    with torch.no_grad():
        packed_RT, _ = policy(*map(torch.from_numpy, fields), temperature=1.0, chunk=1024)
    sampled = np.abs(packed_RT.numpy() - rows.logprobs)[rows.trained]
    assert sampled.max() < 1e-4
    for episode in played.episodes[:4]:
        for number, segment in enumerate(episode.segments):
            if segment.logprobs is not None:
                alone = path_logprobs(model, episode, number)
                np.testing.assert_allclose(alone, segment.logprobs, atol=1e-4)


def path_logprobs(model: PreTrainedModel, episode: Episode, number: int) -> np.ndarray:
    """Log-probs of the tokens of one segment, from a plain run of the path that leads to it."""
    segment = episode.segments[number]
    stem: list[np.ndarray] = []
    at = segment
    while at.parent >= 0:
        stem.insert(0, episode.segments[at.parent].token_ids[: at.cut])
        at = episode.segments[at.parent]
    before = np.concatenate(stem)
    ids = torch.from_numpy(np.concatenate([before, segment.token_ids]).astype(np.int64))[None]
    with torch.no_grad():
        logp = torch.log_softmax(model(ids).logits[0, len(before) - 1 : -1], -1)
    values: np.ndarray = logp.gather(1, ids[0, len(before) :, None])[:, 0].numpy()
    return values


def train(folder: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """Train two steps on the CPU; return the metrics of the steps."""
    config: dict[str, Any] = {
        "steps": 2,
        "model": {"path": str(folder)},
        "data": {
            "train": {"source": "arithmetic", "size": 8},
            "evaluation": {"source": "arithmetic", "size": 2, "held_out": True},
        },
        "environment": {
            "budgets": [8, 32],
            "answers": 2,
            "answer_tokens": 5,
            "answer_header": HEADER,
        },
        "batch": {"problems": 2, "group_size": 4},
        "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-3}},
        "generation": {"kv_cache_mib": 32},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    command = Command(tmp_path / "run", "train", path)
    try:
        assert command.wait() == 0, command.output
        rows = command.steps()
    finally:
        command.kill_all()
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["gap/max"] < 1e-3  # the learner's log-probs against the engine's
        assert row["gap/canary"] < 1e-4
    return rows


@pytest.mark.long
def test_two_steps_of_training(folder: Path, tmp_path: Path) -> None:
    rows = train(folder, tmp_path)
    assert max(row["thought/closed"] for row in rows) > 0


OTHERS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    },
    "mistral": {"sliding_window": 16, "head_dim": 32},
}
EXPERTS = {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@pytest.mark.parametrize("name", ["gemma3_text", pytest.param("mistral", marks=pytest.mark.long)])
def test_other_families_train(name: str, tmp_path: Path) -> None:
    """Sliding windows, whose paths are rows of their own."""
    train(build_model(name, OTHERS[name], tmp_path / name), tmp_path)


def test_experts_of_engine_and_learner_agree(tmp_path: Path) -> None:
    check_logprobs(play(build_model("qwen3_moe", EXPERTS, tmp_path / "model"), END))
