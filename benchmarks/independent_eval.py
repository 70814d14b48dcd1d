"""Accuracy at one thinking budget with vLLM alone: an independent check of `rlsys eval sets`.

    python benchmarks/independent_eval.py MODEL test.jsonl --budget 256 --out theirs.jsonl
    python benchmarks/independent_eval.py MODEL test.jsonl --compare theirs.jsonl RUN/results.jsonl

The first command evaluates a model folder on JSON lines with the columns `problem` and `answer`.
The second compares its rows with those of `rlsys eval sets`, problem by problem.

Nothing of rlsys is imported. The rules for answers are deliberately simple: the last box, or else
the last number, equal as a number or as text. So a difference is a fault on one of the two sides,
or shows where the rules of grading matter.

Agreement of single problems is meaningful with `--temperature 0`; otherwise only the means agree,
within their noise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")


def main() -> None:
    """Evaluate, or compare two evaluations."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("problems", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--budget", type=int, default=256, help="most tokens of a thought")
    parser.add_argument("--answer-tokens", type=int, default=118)
    parser.add_argument("--template", default="{problem}")
    parser.add_argument("--prefill", default="")
    parser.add_argument("--think-end", default="</think>", help="'' ends thoughts with EOS")
    parser.add_argument("--closing", default="...\n\n...\n\n")
    parser.add_argument("--header", default="\n\n**Final Answer**\n")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("independent_eval.jsonl"))
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("THEIRS", "RESULTS"))
    asked = parser.parse_args()
    if asked.compare:
        theirs, results = map(read_rows, asked.compare)
        print(comparison(theirs, results, asked.budget))
        return
    rows = list(islice(read_rows(asked.problems), asked.limit))
    evaluated = evaluate(asked, rows)
    asked.out.write_text("".join(json.dumps(row) + "\n" for row in evaluated), encoding="utf-8")
    right = sum(row["right"] for row in evaluated)
    print(f"{right} of {len(rows)} right: {right / len(rows):.4f} at budget {asked.budget}")
    os._exit(0)  # vLLM's processes keep a finished interpreter waiting


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON lines file, gzipped or not."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def evaluate(asked: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every problem: the thought up to the budget, then one answer."""
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams, TokensPrompt

    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    ends = eos_ids(tokenizer, Path(asked.model))
    think_end = encode(tokenizer, asked.think_end)
    if len(think_end) > 1:
        raise SystemExit("--think-end must be one token of this model, or ''")
    engine = LLM(
        asked.model,
        dtype=asked.dtype,
        generation_config="vllm",  # no sampling defaults of the folder
        seed=asked.seed,
        **({} if "CUDA_VISIBLE_DEVICES" in os.environ else {"enforce_eager": True}),
    )

    def complete(
        prompts: Sequence[list[int]], tokens: int, stops: Sequence[int]
    ) -> list[list[int]]:
        params = SamplingParams(
            temperature=asked.temperature,
            max_tokens=tokens,
            stop_token_ids=stops,
            ignore_eos=True,
            seed=asked.seed,
        )
        given = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        return [list(out.outputs[0].token_ids) for out in engine.generate(given, params)]

    prompts = [prompt_ids(tokenizer, row["problem"], asked) for row in rows]
    thoughts = complete(prompts, asked.budget, [*think_end, *ends])
    closing = encode(tokenizer, asked.closing)
    header = encode(tokenizer, asked.header)
    before = []
    for prompt, thought in zip(prompts, thoughts, strict=True):
        ended = thought[-1] in (think_end or ends)
        # Nothing may follow EOS. So where EOS ends the thought, the answer leaves it out.
        kept = thought[:-1] if ended and not think_end else thought
        before.append([*prompt, *kept, *([] if ended else [*closing, *think_end]), *header])
    answers = complete(before, asked.answer_tokens, ends)
    return [
        graded(row, thought, tokenizer.decode([*header, *answer], skip_special_tokens=True))
        for row, thought, answer in zip(rows, thoughts, answers, strict=True)
    ]


def prompt_ids(tokenizer: Any, problem: str, asked: argparse.Namespace) -> list[int]:
    """Return the ids of one user turn with the problem, and of the prefill."""
    turn = {"role": "user", "content": asked.template.replace("{problem}", problem)}
    text = tokenizer.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    return encode(tokenizer, text) + encode(tokenizer, asked.prefill)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text without special tokens around it."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def eos_ids(tokenizer: Any, folder: Path) -> list[int]:
    """Return the EOS of the tokenizer and those of generation_config.json."""
    ids = [tokenizer.eos_token_id]
    settings = folder / "generation_config.json"
    if settings.is_file():
        more = json.loads(settings.read_text()).get("eos_token_id", [])
        ids += more if isinstance(more, list) else [more]
    return list(dict.fromkeys(ids))


def graded(row: dict[str, Any], thought: Sequence[int], text: str) -> dict[str, Any]:
    """Return the row of an answer; `text` begins with the forced header."""
    answer = extracted(text)
    return {
        "problem": row["problem"],
        "gold": str(row["answer"]),
        "answer": answer,
        "right": answer is not None and same(answer, str(row["answer"])),
        "thought_tokens": len(thought),
    }


def extracted(text: str) -> str | None:
    """Return what the last box holds, or else the last number; None without either."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth = 0
        for place, character in enumerate(text[start:], start):
            depth += {"{": 1, "}": -1}.get(character, 0)
            if character == "}" and not depth:
                return text[start + len("\\boxed{") : place]
        return None  # the box never closes: the answer was cut off
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def same(answer: str, gold: str) -> bool:
    """Return whether two answers are the same number, or the same text."""
    left, right = (re.sub(r"[\s$,]|\\[!,;]", "", text).rstrip(".") for text in (answer, gold))
    try:
        return float(left) == float(right)
    except ValueError:
        return left == right


def comparison(
    theirs: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]], budget: int
) -> str:
    """Return how many problems both score alike, and every problem where they differ.

    `results` are rows of rlsys in the order of the file of problems: row-0, row-1, and so on.
    """
    ours = {
        row["problem"]: next(a for a in row["answers"] if a["budget"] == budget)
        for row in results
        if row["sample"] == 0
    }
    pairs = [(row, ours[f"row-{i}"]) for i, row in enumerate(theirs) if f"row-{i}" in ours]
    differing = [
        f"row-{i}: here {row['answer']!r} is {verdict(row['right'])}, rlsys reads "
        f"{own['answer']!r}, {verdict(own['score'])} (gold {row['gold']!r})"
        for i, (row, own) in enumerate(pairs)
        if row["right"] != bool(own["score"]) or row["answer"] != own["answer"]
    ]
    alike = sum(row["right"] == bool(own["score"]) for row, own in pairs)
    same_text = sum(row["answer"] == own["answer"] for row, own in pairs)
    return "\n".join(
        [
            f"{alike} of {len(pairs)} problems have the same score, {same_text} the same answer",
            f"right: {sum(row['right'] for row, _ in pairs)} here, "
            f"{sum(bool(own['score']) for _, own in pairs)} with rlsys",
            *differing,
        ]
    )


def verdict(right: object) -> str:
    """Return a word for a score."""
    return "right" if right else "wrong"


if __name__ == "__main__":
    main()
