"""The budget card: what a server must do to reproduce the accuracy that a run measured.

budget_card.json stands beside the weights, in the folder that a run exports. It has the accuracy
per budget, the forced texts of a cut as text and as token ids, and the arguments of servers. A
README with the same facts stands beside it (rlsys.serving.readme).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rlsys.config import (
    ArithmeticData,
    CountdownData,
    DialogueSection,
    EvaluationConfig,
    FileData,
    HubData,
    PromptConfig,
    RunConfig,
    Source,
    ThoughtSection,
)
from rlsys.errors import ModelError
from rlsys.serving.servers import LlamaCppServing, VllmServing, llama_cpp_serving, vllm_serving
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThinkTokens
from rlsys.types import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CARD: Final = "budget_card.json"
DIALOGUE_NUMBERS: Final = ("return", "accuracy", "answered", "utilisation")
"""Means of an evaluation of dialogues that a card shows."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy at one budget, with its 95 % bootstrap interval over the problems."""

    budget: int
    mean: float
    low: float
    high: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation after the last step."""

    problems: int
    samples: int
    """Thoughts per problem."""
    answers: int
    """Answers per cut."""
    curve: tuple[Accuracy, ...]
    """One entry per budget; empty for dialogues."""
    anytime: Accuracy | None
    """The mean over the budgets; its `budget` is the largest one."""
    thought_tokens: float | None
    """Mean length of a thought at the largest budget."""
    response_tokens: float | None
    """Mean length of thought, forced text and answer at the largest budget."""
    numbers: dict[str, float]
    """Means of an evaluation of dialogues; empty for thoughts."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How a thought ends and an answer follows, as in training.

    kept thought + closing + think_end + answer_header -> answer    the thought was cut
    kept thought + answer_header -> answer                          the thought ended by itself
    """

    closing: str
    think_end: str | None
    """None: the model has no such text, and EOS ends its thoughts."""
    answer_header: str
    cut_ids: tuple[int, ...]
    """Tokens forced after a thought that was cut: the three texts, tokenized separately."""
    header_ids: tuple[int, ...]
    """Tokens forced after a thought that ended by itself."""
    think_end_ids: tuple[int, ...]
    """One token: only this token ends a thought. Several: any tokens that spell the text do."""
    eos_ids: tuple[int, ...]
    answer_tokens: int
    """Most sampled tokens of an answer."""
    temperature: float
    """Of thoughts and answers, in the evaluation."""
    top_p: float
    """The same; 1 samples the full distribution. There is no top-k and no min-p."""


class BudgetCard(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that budget_card.json holds."""

    name: str
    base_model: str
    method: str
    steps: int
    environment: str
    training_data: str
    evaluation_data: str
    measured: Measured | None
    """None if the run has no evaluation after its last step."""
    prompt: dict[str, Any]
    """data.prompt of the run."""
    budgets: tuple[int, ...]
    """Budgets of the evaluation, in thought tokens."""
    cut: Cut | None = None
    """None for dialogues, as are the fields below."""
    vllm: VllmServing | None = None
    llama_cpp: LlamaCppServing | None = None


def budget_card(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    numbers: Mapping[str, float] | None,
) -> BudgetCard:
    """Return the card of a finished run.

    `numbers` are those of its last evaluation (rlsys.reporting.metrics_file.EvaluationRecord), or
    None. Raises ModelError if the tokenizer cannot write the forced texts of the run.
    """
    environment = config.environment
    dialogues = isinstance(environment, DialogueSection)
    questions = f"questions of the environment {environment.type!r}"
    card = BudgetCard(
        name=config.name,
        base_model=config.model.path,
        method=config.algorithm.method,
        steps=config.steps,
        environment=environment.type,
        training_data=questions if dialogues else data_name(config.data.train),
        evaluation_data=questions if dialogues else data_name(config.data.evaluation),
        measured=None if numbers is None else _measured(config, numbers),
        prompt=config.data.prompt.model_dump(mode="json"),
        budgets=config.evaluation_budgets,
    )
    if not isinstance(environment, ThoughtSection):
        return card
    cut = _cut(tokenizer, environment, config.evaluation)
    start = thought_start(tokenizer, config.data.prompt)
    return msgspec.structs.replace(
        card,
        cut=cut,
        vllm=vllm_serving(cut, tokenizer, start, config.model.dtype, card.budgets),
        llama_cpp=llama_cpp_serving(cut, start, card.budgets),
    )


def write_card(card: BudgetCard) -> str:
    """Return the text of budget_card.json."""
    return msgspec.json.format(msgspec.json.encode(card), indent=2).decode() + "\n"


def read_card(folder: Path) -> BudgetCard:
    """Return the card of an exported folder. Raises ModelError if none can be read."""
    path = folder / CARD
    try:
        return msgspec.json.decode(path.read_bytes(), type=BudgetCard)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path} cannot be read as a budget card ({reason}); name the folder that a run of "
            "rlsys exported, or let `rlsys train` finish so that it writes one"
        ) from error


def prompt_ids(
    card: BudgetCard, tokenizer: PreTrainedTokenizerBase, problem: str
) -> tuple[int, ...]:
    """Return the token ids of the prompt for a problem, as in training."""
    renderer = PromptRenderer(tokenizer, PromptConfig.model_validate(card.prompt))
    ids = renderer.render(Problem(id="", text=problem, answer=""))
    return tuple(ids.tolist())


def thought_start(tokenizer: PreTrainedTokenizerBase, prompt: PromptConfig) -> str | None:
    """Return the end of every prompt, from its last added token on; None if there is no such end.

    Servers count thinking tokens from a text in the prompt, for instance `<think>` with the line
    break after it. A prompt without `<think>` still ends with the text that opens the reply, for
    instance `<|im_start|>assistant` and a line break.
    """
    renderer = PromptRenderer(tokenizer, prompt)
    ids = renderer.render(Problem(id="", text="1", answer="")).tolist()
    added = set(tokenizer.get_added_vocab().values())
    starts = [place for place, token in enumerate(ids) if token in added]
    if not starts:
        return None
    tail = ids[starts[-1] :]
    text = str(tokenizer.decode(tail, skip_special_tokens=False))
    # A problem with added tokens of its own ends here as well: the tail would hold the problem.
    other = renderer.render(Problem(id="", text="2", answer="")).tolist()
    again: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return text if again == tail == other[-len(tail) :] else None


def data_name(source: Source) -> str:
    """Return what a source of problems is called in a card."""
    match source:
        case ArithmeticData(difficulty=(low, high)):
            numbers = f"{low}" if low == high else f"{low} to {high}"
            return f"generated arithmetic, {numbers} numbers"
        case CountdownData(difficulty=(low, high)):
            return f"generated Countdown problems, {low} to {high} numbers"
        case FileData():
            return ", ".join(source.path)
        case HubData():
            return f"{source.name}, split {source.split}"


def _cut(
    tokenizer: PreTrainedTokenizerBase, environment: ThoughtSection, evaluation: EvaluationConfig
) -> Cut:
    think = ThinkTokens.resolve(tokenizer, environment)
    return Cut(
        closing=environment.closing,
        think_end=environment.think_end,
        answer_header=environment.answer_header,
        cut_ids=tuple(think.cut_ids.tolist()),
        header_ids=tuple(think.header_ids.tolist()),
        think_end_ids=tuple(think.end.token_ids.tolist()),
        eos_ids=think.eos_ids,
        answer_tokens=environment.answer_tokens,
        temperature=evaluation.temperature,
        top_p=evaluation.top_p,
    )


def _measured(config: RunConfig, numbers: Mapping[str, float]) -> Measured:
    budgets = [b for b in config.evaluation_budgets if str(b) in numbers]
    curve = tuple(_accuracy(numbers, str(b), b) for b in budgets)
    return Measured(
        problems=int(numbers.get("problems", 0)),
        samples=config.evaluation.samples,
        answers=config.evaluation.answers,
        curve=curve,
        anytime=_accuracy(numbers, "mean", budgets[-1]) if budgets else None,
        thought_tokens=numbers.get("thought/length"),
        response_tokens=numbers.get("response/length"),
        numbers=_present(numbers, () if curve else DIALOGUE_NUMBERS),
    )


def _accuracy(numbers: Mapping[str, float], name: str, budget: int) -> Accuracy:
    mean = numbers[name]
    # Evaluations of earlier versions have no intervals.
    low, high = numbers.get(f"low/{name}", mean), numbers.get(f"high/{name}", mean)
    return Accuracy(budget=budget, mean=mean, low=low, high=high)


def _present(numbers: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: numbers[name] for name in names if name in numbers}
