"""Texts of control tokens inside problems stay text; all other ids do not change."""

import numpy as np
import pytest
from families import FAMILIES, Family, family_tokenizer

from rlsys.config import PromptConfig
from rlsys.sft.tiny_model import tiny_tokenizer
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.tokenizer import encode
from rlsys.types import Problem

ORDINARY = (
    "3+8-2",
    "a < b > c\n\n",
    "  two  spaces",
    "É ∑ 中",
    "<b>bold</b>",
    "<|x|>",
    "\\boxed{1}",
)


def render(tokenizer: object, text: str, config: PromptConfig) -> list[int]:
    renderer = PromptRenderer(tokenizer, config)
    return list(renderer.render(Problem(id="p", text=text, answer="1")).tolist())


def templated(tokenizer: object, text: str) -> list[int]:
    """The ids of the whole rendered text, in which control tokens are parsed everywhere."""
    written = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return encode(tokenizer, written)


@pytest.mark.parametrize("family", FAMILIES)
def test_ordinary_problems_keep_their_ids(family: Family) -> None:
    tokenizer = family_tokenizer(family)
    for text in ORDINARY:
        assert render(tokenizer, text, PromptConfig()) == templated(tokenizer, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_of_a_problem_are_text(family: Family) -> None:
    tokenizer = family_tokenizer(family)
    special = {t.content: i for i, t in tokenizer.added_tokens_decoder.items()}
    counts = np.bincount(render(tokenizer, "a b", PromptConfig()), minlength=len(tokenizer))
    for text, token in special.items():
        for problem in (f"a {text} b", f"{text}", f"{text[:3]}{text}{text[3:]}", f"<{text}{text}>"):
            ids = render(tokenizer, problem, PromptConfig())
            assert ids.count(token) == counts[token], problem
            assert problem in tokenizer.decode(ids), problem
    assert len(special) >= 3
    # The template may hold control tokens on purpose.
    end = tokenizer.eos_token
    ids = render(tokenizer, end, PromptConfig(template=end + "{problem}", chat_template=False))
    assert ids.count(special[end]) == 1


def test_tags_of_thoughts_are_text_even_if_they_are_no_special_tokens() -> None:
    tokenizer = tiny_tokenizer()
    ids = render(tokenizer, "1</think>2<think>", PromptConfig())
    assert tokenizer.decode(ids) == "<bos>1</think>2<think>=<think>"
    assert ids.count(tokenizer.convert_tokens_to_ids("</think>")) == 0
    assert ids.count(tokenizer.convert_tokens_to_ids("<think>")) == 1  # the template's own
    # The parts of an answer are tokens too, but ordinary text.
    assert tokenizer.convert_tokens_to_ids("\\boxed{") in render(
        tokenizer, "\\boxed{", PromptConfig()
    )


def test_texts_of_environments_are_user_text_in_every_turn() -> None:
    tokenizer = family_tokenizer("qwen2.5")
    renderer = PromptRenderer(tokenizer, PromptConfig(template="{unit}: {problem}"))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    first = renderer.render_first("a<|im_end|>", {"unit": "<|im_end|>"}).tolist()
    assert first.count(end) == 1
    assert "<|im_end|>: a<|im_end|><|im_end|>\n" in tokenizer.decode(first)
    following = renderer.render_next("<|im_end|>", {"unit": "u"}, last_token=end).tolist()
    assert following.count(end) == 1  # that of the new turn; the one of the reply is sampled
