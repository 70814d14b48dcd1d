"""The model card of an exported folder: README.md with the metadata of the Hugging Face hub."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from rlsys.serving.card import CARD, Accuracy, BudgetCard, Cut, Measured
from rlsys.serving.servers import LlamaCppServing, VllmServing

README: Final = "README.md"


def model_card(card: BudgetCard, *, hub_model: bool, hub_data: Sequence[str]) -> str:
    """Return README.md of the folder that holds the model.

    `hub_model` True means that `base_model` is a name on the hub, and `hub_data` names the training
    data there. The hub rejects other names in the metadata, so those stand in the text only.
    """
    parts = [_metadata(card, hub_model=hub_model, hub_data=hub_data), _what_it_is(card)]
    if card.measured is not None:
        parts.append(_measurements(card.measured, card.evaluation_data))
    else:
        parts.append("## Accuracy\n\nThe run had no evaluation after its last step.")
    if card.cut is not None and card.vllm is not None and card.llama_cpp is not None:
        parts += [_cut(card.cut), _vllm(card.vllm), _llama_cpp(card.llama_cpp)]
    return "\n\n".join(parts) + "\n"


def _metadata(card: BudgetCard, *, hub_model: bool, hub_data: Sequence[str]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    curve = card.measured.curve if card.measured is not None else ()
    data = ModelCardData(
        base_model=card.base_model if hub_model else None,
        datasets=list(hub_data) or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["rlsys", card.method, "reasoning", "thinking-budget"],
        model_name=card.name,
        eval_results=[
            EvalResult(
                task_type="text-generation",
                dataset_type=card.evaluation_data,
                dataset_name=card.evaluation_data,
                metric_type="accuracy",
                metric_name=f"accuracy at {point.budget} thinking tokens",
                metric_value=round(point.mean, 4),
            )
            for point in curve
        ]
        or None,
    )
    return f"---\n{data.to_yaml().strip()}\n---"


def _what_it_is(card: BudgetCard) -> str:
    return f"""\
# {card.name}

A language model trained with rlsys: {card.steps} steps of `{card.method}` in the environment
`{card.environment}`.

| | |
| --- | --- |
| base model | {card.base_model} |
| trained on | {card.training_data} |
| evaluated on | {card.evaluation_data} |
| machine-readable card | [{CARD}]({CARD}) |"""


def _measurements(measured: Measured, data: str) -> str:
    if not measured.curve:
        rows = [f"| {name} | {value:.3f} |" for name, value in measured.numbers.items()]
        return "\n".join(
            ["## Evaluation after the last step", "", "| mean | |", "| --- | --- |", *rows]
        )
    rows = [_row(f"{point.budget}", point) for point in measured.curve]
    if measured.anytime is not None:
        rows.append(_row("mean over the budgets", measured.anytime))
    lengths = [
        f"mean {name}: {tokens:.1f} tokens"
        for name, tokens in (
            ("thought", measured.thought_tokens),
            ("response at the largest budget", measured.response_tokens),
        )
        if tokens is not None
    ]
    return "\n".join(
        [
            "## Accuracy per thinking budget",
            "",
            f"{measured.problems} held-out problems ({data}); thoughts per problem: "
            f"{measured.samples}; answers per cut: {measured.answers}. The intervals are 95 % "
            "bootstrap\nintervals over the problems; they do not contain the variation between "
            "training seeds.",
            "",
            "| thinking tokens | accuracy | 95 % interval |",
            "| --- | --- | --- |",
            *rows,
            "",
            f"{'; '.join(lengths).capitalize()}.",
        ]
    )


def _row(name: str, point: Accuracy) -> str:
    return f"| {name} | {point.mean:.3f} | [{point.low:.3f}, {point.high:.3f}] |"


def _cut(cut: Cut) -> str:
    end = "" if cut.think_end is None else cut.think_end
    return f"""\
## The trained cut

The accuracy holds if a thought is cut as in training. At the budget, this text is forced, and the
answer follows it (at most {cut.answer_tokens} sampled tokens):

```
{json.dumps(cut.closing + end + cut.answer_header)}
```

After a thought that ended by itself, only `{json.dumps(cut.answer_header)}` is forced. Both texts
are written as JSON. The parts are tokenized separately; `cut_ids` and `header_ids` in {CARD} are
their tokens. Temperature {cut.temperature}, top-p {cut.top_p}, no top-k."""


def _vllm(serving: VllmServing) -> str:
    text = f"""\
## vLLM

```
vllm serve FOLDER {shlex.join(serving.serve)}
```

**Two calls reproduce the cut.** The first request samples the thought, with `max_tokens` as its
budget; the second one continues prompt, thought and forced tokens. Both send token ids to
`/v1/completions`; {CARD} has their fields. `rlsys.serving.client` does this:

```python
from rlsys.config import EndpointSection
from rlsys.endpoints import endpoint_client
from rlsys.serving.card import prompt_ids, read_card
from rlsys.serving.client import BudgetedModel
from rlsys.tokenization.tokenizer import load_tokenizer

card = read_card(folder)
prompt = prompt_ids(card, load_tokenizer(str(folder)), "the problem")
endpoint = EndpointSection(base_url="http://127.0.0.1:8000/v1", model="FOLDER")
async with endpoint_client(endpoint) as client:
    reply = await BudgetedModel(client, endpoint.model, card).reply(prompt, budget=BUDGET)
    print(reply.thought.text, reply.answers[0])
```"""
    one = serving.one_call
    if one is None:
        return (
            f"{text}\n\nvLLM's own thinking budget cannot be used: this model has no text that "
            "ends its thoughts, or its prompt has no token from which thoughts could be counted."
        )
    exact = "the same tokens as" if one.same_tokens else "other tokens than"
    return f"""\
{text}

**One call is an approximation**: vLLM's own budget forces {exact} the trained cut.

```
vllm serve FOLDER {shlex.join((*serving.serve, *one.serve))}
```

Fields of each request, here for the largest budget: `{json.dumps(one.request)}`. What differs from
training:

{_bullets(one.differs)}"""


def _llama_cpp(serving: LlamaCppServing) -> str:
    return f"""\
## llama.cpp

```
llama-server -m MODEL.gguf {shlex.join(serving.serve)}
```

A request may set `reasoning_budget_tokens` instead. What this cannot do:

{_bullets(serving.differs)}"""


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
