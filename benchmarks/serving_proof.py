"""Does a served model keep the accuracy of its budget card? Measured over HTTP, at every budget.

    rlsys eval configs/demo.yaml evaluation.samples=4 run_dir=runs/measured
    python benchmarks/serving_proof.py runs/measured --out results.json

The budget card is made from the evaluation, and a server of vLLM is started on the CPU with the
arguments of the card. The same problems are then answered in four ways:

- two calls       rlsys.serving.client, the form that the card recommends
- other closing   the same, with another text forced before the end of a thought
- one call        vLLM's own thinking budget, which forces the whole text of a trained cut
- one call, bare  the same, which forces the end of a thought alone

The result has, per way and budget, the number of right answers of every problem. The same command
again goes on after the ways that are in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from rlsys.config import AnytimeConfig, EndpointSection, RunConfig
from rlsys.config.loading import load_recorded
from rlsys.data.problems import load_problems
from rlsys.endpoints import endpoint_client
from rlsys.grading.compare import grade
from rlsys.reporting.metrics_file import METRICS, read_evaluations
from rlsys.serving.card import BudgetCard, budget_card, prompt_ids
from rlsys.serving.client import BudgetedModel
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.tokenization.tokenizer import encode, load_tokenizer
from rlsys.types import GradingRequest, Problem, Verdict
from served_model import served

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from transformers import PreTrainedTokenizerBase

OTHER_CLOSING: Final = AnytimeConfig().closing
"""The closing of the paper; the shipped configurations of tiny models have none."""
AT_ONCE: Final = 32
"""Problems that are asked at the same time."""


class Question(NamedTuple):
    """A problem and its prompt."""

    problem: Problem
    prompt: tuple[int, ...]


Ask = Callable[[Question, int], Awaitable[int]]
"""Returns how many of the samples of a question are right within a budget."""


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the run_dir of rlsys eval")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    # Without this, SIGTERM would end the benchmark and leave its server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    config = load_recorded(asked.run / "evaluation" / "config.yaml")
    evaluation = read_evaluations(asked.run / "evaluation" / METRICS)[-1]
    tokenizer = load_tokenizer(config.model.path)
    card = budget_card(config, tokenizer, evaluation.numbers)
    found: dict[str, Any] = {
        "model": config.model.path,
        "evaluation": msgspec.to_builtins(card.measured),
        "right": {},
    }
    if asked.out.exists():
        found = json.loads(asked.out.read_text(encoding="utf-8"))
    for way, right in measure(config, card, tokenizer, without=tuple(found["right"])):
        found["right"][way] = right
        asked.out.write_text(json.dumps(found) + "\n", encoding="utf-8")


def measure(
    config: RunConfig,
    card: BudgetCard,
    tokenizer: PreTrainedTokenizerBase,
    *,
    without: Collection[str],
) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Yield every way that is not in `without`, with its right answers per budget and problem."""
    cut, vllm = card.cut, card.vllm
    assert cut is not None and vllm is not None and vllm.one_call is not None
    problems = load_problems(config.data.evaluation)[: config.evaluation.problems]
    questions = [Question(p, prompt_ids(card, tokenizer, p.text)) for p in problems]
    samples, folder = config.evaluation.samples, Path(resolve_model_path(config.model.path))
    other = _with_closing(card, OTHER_CLOSING if cut.closing != OTHER_CLOSING else "", tokenizer)
    ways = {
        # The texts that the server forces, and how it is asked.
        "two calls": ("", _two_calls(card, samples)),
        "two calls, other closing": ("", _two_calls(other, samples)),
        "one call": (
            cut.closing + str(cut.think_end) + cut.answer_header,
            _one_call(card, samples),
        ),
        "one call, bare": (str(cut.think_end), _one_call(card, samples)),
    }
    left = {way: parts for way, parts in ways.items() if way not in without}
    for end, same in groupby(left.items(), key=lambda item: item[1][0]):
        option, strings, *parser = vllm.one_call.serve
        forced = json.dumps(json.loads(strings) | {"reasoning_end_str": end})
        with served(folder, (*vllm.serve, *((option, forced, *parser) if end else ()))) as url:
            for way, (_, ask) in same:
                yield way, _over_http(url, questions, card, ask)


def _over_http(
    url: str,
    questions: Sequence[Question],
    card: BudgetCard,
    way: Callable[[AsyncOpenAI], Ask],
) -> dict[str, list[int]]:
    """Return the right answers per budget and problem."""

    async def ask_all() -> dict[str, list[int]]:
        gate = asyncio.Semaphore(AT_ONCE)
        endpoint = EndpointSection(base_url=url, model="model", timeout_s=300)
        async with endpoint_client(endpoint) as client:
            ask = way(client)

            async def within(question: Question, budget: int) -> int:
                async with gate:
                    return await ask(question, budget)

            return {
                str(budget): await asyncio.gather(*(within(q, budget) for q in questions))
                for budget in card.budgets
            }

    return asyncio.run(ask_all())


def _two_calls(card: BudgetCard, samples: int) -> Callable[[AsyncOpenAI], Ask]:
    def way(client: AsyncOpenAI) -> Ask:
        model = BudgetedModel(client, "model", card)

        async def ask(question: Question, budget: int) -> int:
            replies = [await model.reply(question.prompt, budget=budget) for _ in range(samples)]
            return sum(_right(reply.answers[0], question.problem) for reply in replies)

        return ask

    return way


def _one_call(card: BudgetCard, samples: int) -> Callable[[AsyncOpenAI], Ask]:
    def way(client: AsyncOpenAI) -> Ask:
        cut, serving = card.cut, card.vllm
        assert cut is not None and serving is not None and serving.one_call is not None
        own = ("temperature", "top_p", "max_tokens")
        fields = {name: value for name, value in serving.answer.items() if name not in own}
        extra = serving.one_call.request["max_tokens"] - card.budgets[-1]

        async def ask(question: Question, budget: int) -> int:
            completion: Any = await client.completions.create(
                model="model",
                prompt=list(question.prompt),
                n=samples,
                temperature=cut.temperature,
                top_p=cut.top_p,
                max_tokens=budget + extra,
                extra_body={**fields, "thinking_token_budget": budget},
            )
            right = 0
            for choice in completion.choices:
                _, end, answer = choice.text.partition(cut.think_end)
                # As in training, an answer with a second end of thought is wrong.
                well_formed = bool(end) and cut.think_end not in answer
                right += well_formed and _right(answer, question.problem)
            return right

        return ask

    return way


def _right(answer: str, problem: Problem) -> bool:
    return bool(answer) and grade(GradingRequest(answer, problem.answer)) is Verdict.RIGHT


def _with_closing(card: BudgetCard, closing: str, tokenizer: PreTrainedTokenizerBase) -> BudgetCard:
    """Return a card that forces another closing."""
    assert card.cut is not None
    ids = (*encode(tokenizer, closing), *card.cut.think_end_ids, *card.cut.header_ids)
    cut = msgspec.structs.replace(card.cut, closing=closing, cut_ids=ids)
    return msgspec.structs.replace(card, cut=cut)


if __name__ == "__main__":
    main()
