"""Arguments of servers that come as close to a trained cut as each server can.

What each option does was read in vLLM 0.24 and 0.32 and in the manual of llama.cpp's server. vLLM
0.32 was also measured (docs/serving.md); llama.cpp was not run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlsys.serving.card import Cut

PARSED: Final = ("<think>", "</think>")
"""The texts of a thought that vLLM's parser `deepseek_r1` knows, if each is a single token."""


class OneCall(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's own thinking budget: one request, and the server forces the end of the thought."""

    serve: tuple[str, ...]
    """Further arguments of `vllm serve`."""
    request: dict[str, int]
    """Fields of a request for the largest budget."""
    same_tokens: bool
    """True if the server forces the very tokens of a trained cut."""
    differs: tuple[str, ...]
    """What differs from training."""


class VllmServing(msgspec.Struct, frozen=True, kw_only=True):
    """How vLLM serves the model."""

    serve: tuple[str, ...]
    """Arguments of `vllm serve`, after the folder."""
    thought: dict[str, object]
    """Fields of the request for a thought, to /v1/completions; `max_tokens` is the budget."""
    answer: dict[str, object]
    """Fields of the request for an answer."""
    one_call: OneCall | None
    """None if vLLM's own budget cannot count this model's thoughts."""


class LlamaCppServing(msgspec.Struct, frozen=True, kw_only=True):
    """How llama.cpp's server comes close to the trained cut."""

    serve: tuple[str, ...]
    """Arguments of `llama-server`, beside the model."""
    differs: tuple[str, ...]
    """What it cannot do."""


def vllm_serving(
    cut: Cut,
    tokenizer: PreTrainedTokenizerBase,
    start: str | None,
    dtype: str,
    budgets: Sequence[int],
) -> VllmServing:
    """Return the arguments and requests of vLLM.

    `start` is the text from which thinking tokens are counted (rlsys.serving.card.thought_start).
    """
    single = len(cut.think_end_ids) == 1
    common: dict[str, object] = {
        "temperature": cut.temperature,
        "top_p": cut.top_p,
        "top_k": 0,
        "return_token_ids": True,
        # Without this, an end of thought inside an answer would be invisible in its text.
        "skip_special_tokens": False,
    }
    thought: dict[str, object] = {
        **common,
        "stop_token_ids": [*(cut.think_end_ids if single else ()), *cut.eos_ids],
        "stop": [] if single or cut.think_end is None else [cut.think_end],
        "include_stop_str_in_output": True,
        "max_tokens": budgets[-1],
    }
    answer = {**common, "stop_token_ids": [*cut.eos_ids], "max_tokens": cut.answer_tokens}
    return VllmServing(
        # Without the second option vLLM takes top-p and top-k from generation_config.json.
        serve=("--dtype", dtype, "--generation-config", "vllm"),
        thought=thought,
        answer=answer,
        one_call=_one_call(cut, tokenizer, start, budgets[-1]),
    )


def _one_call(
    cut: Cut, tokenizer: PreTrainedTokenizerBase, start: str | None, budget: int
) -> OneCall | None:
    if start is None or cut.think_end is None:
        return None
    end = cut.closing + cut.think_end + cut.answer_header
    strings = {"reasoning_start_str": start, "reasoning_end_str": end}
    serve = ["--reasoning-config", json.dumps(strings)]
    vocabulary = tokenizer.get_vocab()
    if cut.think_end == PARSED[1] and all(text in vocabulary for text in PARSED):
        serve += ["--reasoning-parser", "deepseek_r1"]
    ids: list[int] = tokenizer(end, add_special_tokens=False)["input_ids"]
    differs = [
        "after a thought that ended by itself the header is not forced, and rlsys never trains "
        "forced text, so the model may not write it",
        "the first model runner of vLLM (the only one on CPUs) recognizes only the whole forced "
        "text as an end, so it can force a second end after a thought that ended by itself",
        "vLLM 0.24 takes the budget with its first model runner only: set "
        "VLLM_USE_V2_MODEL_RUNNER=0 there",
    ]
    if len(cut.think_end_ids) > 1:
        differs.append("an end that the model spells with other tokens is not recognized")
    return OneCall(
        serve=tuple(serve),
        request={
            "thinking_token_budget": budget,
            "max_tokens": budget + len(ids) + cut.answer_tokens,
        },
        same_tokens=ids == list(cut.cut_ids),
        differs=tuple(differs),
    )


def llama_cpp_serving(cut: Cut, start: str | None, budgets: Sequence[int]) -> LlamaCppServing:
    """Return the arguments of llama.cpp's server for the largest budget."""
    differs = [
        "nothing can be forced after the end of the thought, and rlsys never trains forced text, "
        "so the model may not write the header",
        "the texts that begin and end a thought come from the chat template; they cannot be given",
        "it was not run with this model: the arguments are those of its manual",
    ]
    if start is None or cut.think_end is None:
        differs.insert(0, "this model has no texts around its thoughts, so no budget is counted")
    return LlamaCppServing(
        serve=(
            *("--reasoning-budget", str(budgets[-1])),
            *(("--reasoning-budget-message", cut.closing) if cut.closing else ()),
            # Its defaults are 0.8, 40, 0.95 and 0.05.
            *("--temp", str(cut.temperature), "--top-k", "0"),
            *("--top-p", str(cut.top_p), "--min-p", "0.0"),
        ),
        differs=tuple(differs),
    )
