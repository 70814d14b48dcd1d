"""Trees for the estimator lab: sampled here, or read from a checkpoint; and their gradients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.logprobs import PolicyModel, load_policy
from learner.packing import flatten, pack_rows
from rlsys.algorithms.samples import token_slots
from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.config import AnytimeConfig, RunConfig
from rlsys.data.problems import load_problems
from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.base import RolloutContext
from rlsys.grading.compare import grade
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.training.checkpoint_files import read_groups
from rlsys.types import (
    Completion,
    Episode,
    GenerationRequest,
    Generator,
    GradingRequest,
    GroupReport,
    Kind,
    Problem,
    Sample,
    Verdict,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Floats64 = NDArray[np.float64]


class ModelGenerator:
    """Samples with transformers in this process; log-probs are not kept."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request; all stop at the same tokens."""
        if not requests:
            return []
        rows = [request.token_ids for request in requests for _ in range(request.n)]
        width = max(map(len, rows))
        token_ids = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros_like(token_ids)
        for row, ids in enumerate(rows):
            token_ids[row, width - len(ids) :] = torch.from_numpy(ids.astype(np.int64))
            mask[row, width - len(ids) :] = 1
        first = requests[0]
        torch.manual_seed(first.seed or 0)
        with torch.no_grad():
            found = self._model.generate(
                input_ids=token_ids,
                attention_mask=mask,
                do_sample=True,
                temperature=first.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(request.max_tokens for request in requests),
                eos_token_id=list(first.stop_token_ids),
                pad_token_id=0,
            )[:, width:].numpy()
        completions = iter(found)
        return [[_completion(next(completions), r) for _ in range(r.n)] for r in requests]


def _completion(sampled: NDArray[np.int64], request: GenerationRequest) -> Completion:
    """Cut a row at its first stop token; the rest of it is padding."""
    ends = np.isin(sampled, request.stop_token_ids).nonzero()[0]
    token_ids = sampled[: ends[0] + 1 if len(ends) else request.max_tokens].astype(np.int32)
    return Completion(
        token_ids=token_ids,
        logprobs=np.zeros(len(token_ids), np.float32),
        stopped=len(ends) > 0,
        versions=(0, 0),
        engine=0,
    )


class _Grader:
    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        return [grade(request) for request in requests]


def environment_of(
    config: RunConfig, generator: Generator, *, max_length: int
) -> AnytimeEnvironment:
    """Return the environment of a run, without its actors: answers are graded in this process."""
    tokenizer = load_tokenizer(config.model.path)
    return AnytimeEnvironment.create(
        RolloutContext(
            config=config,
            role="training",
            tokenizer=tokenizer,
            decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
            renderer=PromptRenderer(tokenizer, config.data.prompt),
            generator=generator,
            grader=_Grader(),
            max_length=max_length,
        )
    )


def sampled_trees(config: RunConfig, problems: int) -> Iterator[tuple[Episode, ...]]:
    """Yield batch.group_size episodes of each of the first problems of data.train."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve_model_path(config.model.path)).eval()
    environment = environment_of(config, ModelGenerator(model), max_length=1024)
    for index, problem in enumerate(load_problems(config.data.train)[:problems]):
        yield asyncio.run(_rollout(environment, index, problem))


async def _rollout(
    environment: AnytimeEnvironment, index: int, problem: Problem
) -> tuple[Episode, ...]:
    """Roll out a group as `environment` does, but all thoughts in one call, then all answers."""
    prompt = environment.renderer.render(problem)
    thoughts = await environment.sample_thoughts(index, prompt)
    branches = [b for g, t in enumerate(thoughts) for b in environment.branches(g, t)]
    answers = await environment.sample_answers(index, problem, prompt, thoughts, branches)
    return environment.group(index, problem, prompt, thoughts, branches, answers).episodes


def recorded_trees(checkpoint: Path, config: RunConfig) -> Iterator[tuple[Episode, ...]]:
    """Yield the episodes of the groups that wait in a checkpoint of an anytime run.

    A checkpoint has the scores of every episode and budget, and no scores of single answers. So the
    run must have one answer per budget.
    """
    environment = config.environment
    assert isinstance(environment, AnytimeConfig)
    if environment.answers != 1:
        raise SystemExit(
            f"{checkpoint} is of a run with environment.answers {environment.answers}; the lab "
            "reads checkpoints of runs with one answer per budget"
        )
    for stored in read_groups(checkpoint):
        yield tuple(
            _episode(sample, stored.report, number, environment.budgets)
            for number, sample in enumerate(stored.samples)
        )


def _episode(sample: Sample, report: GroupReport, number: int, budgets: Sequence[int]) -> Episode:
    segments = sample.segments
    answers = [i for i, segment in enumerate(segments) if segment.kind is Kind.ANSWER]
    # Answers with the same parent hang from the same cut, and they are neighbours.
    shared = [list(same) for _, same in groupby(answers, key=lambda i: segments[i].parent)]
    scores = np.array([report.numbers[f"score/{b}"][number] for b in budgets], np.float32)
    return Episode(
        segments=segments,
        scores=scores,
        answer_segments=np.array(answers, np.int32),
        splits=np.array([s for s, same in enumerate(shared) for _ in same], np.int32),
        verdicts=(scores > 0.5).astype(np.int8),
    )


class PieceGradients:
    """Gradients of the log-probs of single pieces of an episode, reduced to a fixed size.

    Pieces are the M slots of the thought, then its M answers. Every parameter is added with a
    random sign to the number at its index modulo D. Inner products keep their expected value, with
    a standard deviation of about 1 / sqrt(D) of the product of the lengths.
    """

    def __init__(self, path: str, budgets: Sequence[int], temperature: float, size: int) -> None:
        """`size` is D."""
        self._policy: PolicyModel = load_policy(
            resolve_model_path(path),
            dtype=torch.float32,
            device=torch.device("cpu"),
            gradient_checkpointing=False,
            compiled=False,
            lora=None,
        )
        self._budgets, self._temperature, self._size = budgets, temperature, size
        self._parameters = [p for p in self._policy.model.parameters() if p.requires_grad]
        folds = -(-sum(p.numel() for p in self._parameters) // size)
        generator = torch.Generator().manual_seed(0)
        self._signs = torch.randint(2, (folds * size,), generator=generator) * 2.0 - 1.0
        self._whole = torch.zeros(folds * size)

    def of(self, episode: Episode) -> NDArray[np.float32]:
        """Return the gradients of one episode, float32[P, D]; 0 for pieces without tokens."""
        tree = flatten(_labelled(episode, self._budgets))
        packed = pack_rows([[tree]], len(tree.token_ids))
        fields = (packed.token_ids, packed.positions, packed.parents, packed.exits, packed.trained)
        logprobs_1T, _ = self._policy(
            *map(torch.from_numpy, fields), temperature=self._temperature, chunk=1024
        )
        labels_1T = torch.from_numpy(packed.advantages)
        found = np.zeros((2 * len(self._budgets), self._size), np.float32)
        for piece, row_D in enumerate(found):
            chosen_1T = labels_1T == piece + 1
            if chosen_1T.any():
                parts = torch.autograd.grad(
                    logprobs_1T[chosen_1T].sum(), self._parameters, retain_graph=True
                )
                flat = torch.cat([part.flatten() for part in parts])
                self._whole[: len(flat)] = flat
                folded = (self._whole * self._signs).view(-1, self._size).sum(dim=0)
                row_D += folded.numpy()
        return found


def _labelled(episode: Episode, budgets: Sequence[int]) -> Sample:
    """A sample whose advantages are the numbers of the pieces, from 1 on."""
    labels: list[Any] = [None] * len(episode.segments)
    labels[THOUGHT] = (token_slots(episode, budgets) + 1).astype(np.float32)
    for slot, segment in enumerate(episode.answer_segments):
        tokens = len(episode.segments[segment].token_ids)
        labels[segment] = np.full(tokens, len(budgets) + slot + 1, np.float32)
    return Sample(segments=episode.segments, advantages=tuple(labels))
