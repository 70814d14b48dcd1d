"""The budget card and the README of an export, for tokenizers of several kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from families import FAMILIES, family_tokenizer

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.errors import ModelError
from rlsys.reporting.metrics_file import METRICS
from rlsys.serving.card import (
    CARD,
    BudgetCard,
    budget_card,
    prompt_ids,
    read_card,
    thought_start,
    write_card,
)
from rlsys.serving.readme import README, model_card
from rlsys.serving.writing import write_run_card
from rlsys.tokenization.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo.yaml"
NUMBERS = {
    **{"16": 0.5, "32": 0.5, "48": 0.75, "64": 1.0, "mean": 0.6875, "problems": 8.0},
    **{"low/16": 0.25, "high/16": 0.75, "low/mean": 0.5, "high/mean": 0.875},
    **{"thought/length": 22.5, "response/length": 30.0},
}


def card_of(*words: str, numbers: dict[str, float] | None = None) -> BudgetCard:
    return budget_card(load_config(DEMO, words), load_tokenizer("tiny"), numbers or NUMBERS)


def test_a_card_has_the_cut_the_accuracy_and_the_arguments() -> None:
    card = card_of('environment.closing="..."', "model.dtype=bfloat16", "evaluation.top_p=0.95")
    measured, cut, vllm = card.measured, card.cut, card.vllm
    assert measured is not None and cut is not None and vllm is not None
    first = measured.curve[0]
    assert (first.budget, first.mean, first.low, first.high) == (16, 0.5, 0.25, 0.75)
    assert [point.budget for point in measured.curve] == [16, 32, 48, 64]
    assert measured.thought_tokens == 22.5
    tokenizer = load_tokenizer("tiny")
    assert tokenizer.decode(cut.cut_ids) == "...</think>\n\n**Final Answer**\n\\boxed{"
    assert tokenizer.decode(cut.header_ids) == "\n\n**Final Answer**\n\\boxed{"
    assert vllm.serve == ("--dtype", "bfloat16", "--generation-config", "vllm")
    assert vllm.thought["stop_token_ids"] == [*cut.think_end_ids, *cut.eos_ids]
    assert (vllm.thought["top_p"], vllm.answer["top_p"]) == (0.95, 0.95)
    assert (vllm.thought["max_tokens"], vllm.answer["max_tokens"]) == (64, 6)
    one = vllm.one_call
    assert one is not None and one.same_tokens
    assert json.loads(one.serve[1]) == {
        "reasoning_start_str": "<think>",
        "reasoning_end_str": "...</think>\n\n**Final Answer**\n\\boxed{",
    }
    assert one.request == {"thinking_token_budget": 64, "max_tokens": 64 + 6 + 6}
    assert card.llama_cpp is not None
    assert card.llama_cpp.serve[:4] == (
        *("--reasoning-budget", "64", "--reasoning-budget-message", "..."),
    )


def test_a_card_is_read_as_it_was_written(tmp_path: Path) -> None:
    card = card_of()
    (tmp_path / CARD).write_text(write_card(card), encoding="utf-8")
    assert read_card(tmp_path) == card
    assert prompt_ids(card, load_tokenizer("tiny"), "3+8") == (2, 24, 16, 29, 34, 100)
    for text in ("", "{}", "[1"):
        (tmp_path / CARD).write_text(text)
        with pytest.raises(ModelError, match="budget card"):
            read_card(tmp_path)


def test_thinking_tokens_are_counted_from_the_end_of_the_prompt() -> None:
    cases = {"qwen2.5": "<|im_start|>assistant\n", "llama-3": "<|end_header_id|>\n\n"}
    for family in FAMILIES:
        config = RunConfig().data.prompt
        assert thought_start(family_tokenizer(family), config) == cases[family]
    tiny = load_tokenizer("tiny")
    opened = RunConfig().data.prompt.model_copy(update={"prefill": "\n"})
    assert thought_start(tiny, opened) == "<think>\n"
    # Without a chat template the last added token stands before the problem.
    bare = RunConfig().data.prompt.model_copy(update={"chat_template": False})
    assert thought_start(tiny, bare) is None


def test_an_end_of_several_tokens_is_a_stop_text() -> None:
    card = budget_card(load_config(DEMO), family_tokenizer("qwen2.5"), None)
    assert card.measured is None
    assert card.cut is not None and card.vllm is not None
    assert len(card.cut.think_end_ids) > 1
    assert card.vllm.thought["stop"] == ["</think>"]
    assert card.vllm.thought["stop_token_ids"] == list(card.cut.eos_ids)
    assert card.vllm.one_call is not None
    assert "--reasoning-parser" not in card.vllm.one_call.serve


def test_without_an_end_of_thought_vllm_has_no_budget_of_its_own() -> None:
    card = card_of("environment.think_end=null")
    assert card.cut is not None and card.vllm is not None and card.llama_cpp is not None
    assert card.vllm.one_call is None
    assert card.vllm.thought["stop"] == []
    assert "no budget is counted" in card.llama_cpp.differs[0]
    assert "cannot be used" in model_card(card, hub_model=False, hub_data=[])


def test_the_readme_has_metadata_that_the_hub_reads() -> None:
    card = card_of("data.train={source: hub, name: openai/gsm8k}", "model.path=org/base")
    text = model_card(card, hub_model=True, hub_data=["openai/gsm8k"])
    _, metadata, body = text.split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(metadata)
    assert (found["base_model"], found["datasets"]) == ("org/base", ["openai/gsm8k"])
    metrics = found["model-index"][0]["results"][0]["metrics"]
    assert [m["value"] for m in metrics] == [0.5, 0.5, 0.75, 1.0]
    assert "| 16 | 0.500 | [0.250, 0.750] |" in body
    assert "openai/gsm8k, split train" in body
    for name, wanted in (("base_model", False), ("datasets", False), ("tags", True)):
        assert (name in model_card(card, hub_model=False, hub_data=[]).split("---")[1]) == wanted


def test_a_run_writes_its_last_evaluation(tmp_path: Path) -> None:
    config = load_config(DEMO, [f"run_dir={tmp_path}"])
    export = tmp_path / "export"
    load_tokenizer("tiny").save_pretrained(export)
    for steps, expected in ((config.steps, 0.5), (config.steps - 1, None)):
        row = {"step": steps} | {f"evaluation/{name}": value for name, value in NUMBERS.items()}
        (tmp_path / METRICS).write_text(json.dumps(row) + "\n")
        measured = write_run_card(config, export).measured
        assert (measured and measured.curve[0].mean) == expected
        assert read_card(export).measured == measured
    assert "no evaluation after its last step" in (export / README).read_text(encoding="utf-8")


def test_dialogues_have_a_card_without_a_cut() -> None:
    config = load_config(ROOT / "configs" / "economics_tiny.yaml")
    card = budget_card(config, load_tokenizer("tiny"), {"return": 9.5, "accuracy": 0.875})
    assert (card.cut, card.vllm, card.llama_cpp) == (None, None, None)
    assert card.training_data == "questions of the environment 'economics'"
    text = model_card(card, hub_model=False, hub_data=[])
    assert "| return | 9.500 |" in text
    assert "vllm serve" not in text
