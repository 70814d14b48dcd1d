"""Make a very small Qwen2 that calls tools and thinks, for the TRL recipes on a CPU.

    python docs/recipes/trl_tiny_model.py --output runs/trl_tiny

It learns sums of two one-digit numbers, in both forms that the recipes use, well enough to be right
now and then. Chat template and special tokens are those of Qwen2.5.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl_environment_factory import PROMPT, QUESTIONS, Economics

BATCH = 16
LEARNING_RATE = 3e-3
MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"


def question(random: random.Random) -> tuple[str, int]:
    """A question as the server asks it, and its answer."""
    a, b = random.randint(1, 9), random.choice([-1, 1]) * random.randint(1, 9)
    return f"{a}{b:+d}", a + b


def with_tools(random: random.Random) -> list[dict[str, Any]]:
    """An episode of `trl_environment_factory.py`."""
    text, answer = question(random)
    messages = [{"role": "user", "content": PROMPT[0]["content"] + text}]
    for left in reversed(range(QUESTIONS)):
        arguments = {"response": f"\\boxed{{{answer}}}"}
        call = {"type": "function", "function": {"name": "answer", "arguments": arguments}}
        text, answer = question(random)
        said = text if left else "No question is left."
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": "answer", "content": said})
    return [*messages, {"role": "assistant", "content": "Done."}]


def thinking(random: random.Random) -> list[dict[str, Any]]:
    """An episode of `trl_rollout_func.py`, with thoughts of different lengths."""
    messages = []
    for _ in range(QUESTIONS):
        text, answer = question(random)
        thought = f"{text}={answer}" + random.choice(["", f", {text}={answer}"])
        reply = f"<think>\n{thought}\n</think>\n\n\\boxed{{{answer}}}"
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": reply})
    return messages


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level pairs learnt from the episodes, digits apart."""
    tokenizer = Tokenizer(models.BPE())
    digits, byte_level = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(MARKS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )


def encode(
    tokenizer: Any, messages: list[dict[str, Any]], tools: Any
) -> tuple[list[int], list[int]]:
    """Ids of an episode and its labels: -100 outside what the assistant said."""
    ids: list[int] = []
    labels: list[int] = []
    seen = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        for upto, prompt in ((index, True), (index + 1, False)):
            text = tokenizer.apply_chat_template(
                messages[:upto], tools=tools, tokenize=False, add_generation_prompt=prompt
            )
            piece = tokenizer.encode(text[len(seen) :], add_special_tokens=False)
            ids += piece
            labels += [-100] * len(piece) if prompt else piece
            seen = text
    return ids, labels


def main() -> None:
    """Train the model and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    draw = random.Random(0)
    tools = [Economics.answer]
    kinds = ((with_tools, tools), (thinking, None))
    template = TEMPLATE.read_text(encoding="utf-8")
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    texts = [
        plain.apply_chat_template(make(draw), tools=given, chat_template=template, tokenize=False)
        for make, given in kinds
        for _ in range(100)
    ]
    tokenizer = make_tokenizer(texts)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, arguments.steps)
    for step in range(1, arguments.steps + 1):
        make, given = kinds[step % 2]
        rows = [encode(tokenizer, make(draw), given) for _ in range(BATCH)]
        width = max(len(ids) for ids, _ in rows)
        pad = tokenizer.pad_token_id
        ids = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} width {width}", flush=True)
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
