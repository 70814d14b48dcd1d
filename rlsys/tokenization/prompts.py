"""Render problems and turns as the token ids of prompts.

Every text is encoded without special tokens: a chat template writes them itself, and a second BOS
would change the input of the model. The prefill is encoded separately and appended as ids, so that
its first characters never merge with the last characters before it. Texts of control tokens inside
a problem stay ordinary text (rlsys.tokenization.user_text).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlsys.config import PromptConfig
from rlsys.errors import DataError, ModelError
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.tokenization.user_text import UserText
from rlsys.types import Problem, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Facts = Mapping[str, float | str]
"""Numbers and texts that a prompt template may show, by name."""

_QUESTION = "The question goes here."
"""Stands for a problem while a chat template is checked."""
_REPLY = "The reply goes here."
"""Stands for a reply while the text after it is read from a chat template."""


class PromptRenderer:
    """Renders prompts by one prompt configuration."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: PromptConfig) -> None:
        """Render an empty problem, to find errors early.

        Raises ModelError if a chat template is required and missing, fails, refuses the roles,
        changes the turns, or opens the thought that the prefill opens again.
        """
        self._tokenizer = tokenizer
        self._user_text = UserText(tokenizer)
        self._config = config
        self._prefill = encode(tokenizer, config.prefill)
        if config.chat_template:
            _check_template(tokenizer)
            self._check_turns()
        # A chat template writes the BOS itself. Without a template it must be added here, because
        # `encode` adds no special tokens.
        self._bos = [] if config.chat_template else _automatic_bos(tokenizer)
        self._overhead = len(self._render_text(self._filled("", {})))

    def render(self, problem: Problem) -> Tokens:
        """Return the ids of the prompt: turns, generation prompt, then the prefill."""
        return self.render_first(problem.text, {})

    def render_first(self, text: str, facts: Facts) -> Tokens:
        """Return the ids of the first prompt of a dialogue. Text and `facts` fill the template.

        Example: the template `{remaining} tokens. {problem}`, the facts {"remaining": 300.0} and
        the text `3+8` give the user turn `300 tokens. 3+8`.
        """
        return np.array(self._render_text(self._filled(text, facts)), dtype=np.int32)

    def render_next(self, text: str, facts: Facts, *, last_token: int) -> Tokens:
        """Return the ids that follow a sampled reply: its end of turn, the user turn, the prefill.

        Only the new turn is rendered. The reply keeps its sampled ids, because training needs
        exactly these; a template may change a reply (that of Qwen3 removes earlier thoughts).
        `last_token` is the last id of the reply. If it is already the end of turn that the template
        writes, that token is not repeated.
        """
        ids = self._user_text.encode(self._after_reply(self._filled(text, facts)))
        if ids[:1] == [last_token] and last_token in eos_ids(self._tokenizer):
            ids = ids[1:]
        return np.array(ids + self._prefill, dtype=np.int32)

    @cached_property
    def end_of_turn(self) -> int:
        """The token that ends a supervised reply.

        This is the end of turn of the chat template, if it is an EOS; otherwise the EOS of the
        tokenizer. In some model folders the tokenizer names another EOS than the template uses.
        """
        if self._config.chat_template:
            first, *_ = encode(self._tokenizer, self._after_reply(""))
            if first in eos_ids(self._tokenizer):
                return first
        return int(self._tokenizer.eos_token_id)

    def _filled(self, text: str, facts: Facts) -> str:
        """Return the user turn. Texts of control tokens are marked in `text` and `facts` only."""
        filled = self._config.template
        for name, value in facts.items():
            shown = self._user_text.marked(value) if isinstance(value, str) else f"{value:.10g}"
            filled = filled.replace(f"{{{name}}}", shown)
        return filled.replace("{problem}", self._user_text.marked(text))

    def _after_reply(self, user_turn: str) -> str:
        """Return the text that the chat template writes between a reply and the next reply."""
        if not self._config.chat_template:
            return user_turn
        turns = [("user", "question"), ("assistant", _REPLY), ("user", user_turn)]
        _, mark, rest = self._through_chat_template(turns).partition(_REPLY)
        if not mark:
            raise ModelError(
                f"the chat template of {self._tokenizer.name_or_path!r} changes earlier replies, "
                "so a dialogue cannot continue after them; use another model"
            )
        return rest

    def surely_fits(self, problem: Problem, max_tokens: int) -> bool:
        """Return True if the prompt is certainly at most `max_tokens` long, without rendering it.

        False means that it may be longer. A tokenizer writes at most one token per byte; the factor
        2 covers Unicode normalisation.
        """
        return self._overhead + 2 * len(problem.text.encode()) <= max_tokens

    def _render_text(self, user_turn: str) -> list[int]:
        turns = self._turns(user_turn)
        if self._config.chat_template:
            ids = self._user_text.encode(self._through_chat_template(turns))
        else:
            ids = self._user_text.encode("".join(turn for _, turn in turns))
            if ids[:1] != self._bos:
                ids = self._bos + ids
        return ids + self._prefill

    def _turns(self, user_turn: str) -> list[tuple[str, str]]:
        """Return (role, text) of every turn. Questions of the examples use the template too."""
        config = self._config
        turns = [] if config.system is None else [("system", config.system)]
        for question, answer in config.examples:
            # str.replace and not str.format: the many braces of LaTeX would be taken for fields.
            turns += [("user", config.template.replace("{problem}", question))]
            turns += [("assistant", answer)]
        return [*turns, ("user", user_turn)]

    def _check_turns(self) -> None:
        """Raise ModelError if the template drops a turn or opens a thought before the prefill."""
        name, prefill = self._tokenizer.name_or_path, self._config.prefill
        turns = self._turns(_QUESTION)
        text = self._through_chat_template(turns)
        for role, content in turns:
            if content.strip() not in text:
                key = "data.prompt.system" if role == "system" else "data.prompt.examples"
                raise ModelError(
                    f"the chat template of {name!r} leaves out a part of the {role} turn "
                    f"{content[:60]!r} (many templates remove the thoughts of earlier turns), so "
                    f"the model would not see it; change {key}, or write it into "
                    "data.prompt.template"
                )
        opened = re.search(r"<\w+>\s*$", text)
        if opened and prefill.lstrip().startswith(opened[0].strip()):
            raise ModelError(
                f"the chat template of {name!r} already ends with {opened[0]!r}, and "
                f"data.prompt.prefill {prefill!r} would open it a second time; set "
                "data.prompt.prefill to ''"
            )

    def _through_chat_template(self, turns: Sequence[tuple[str, str]]) -> str:
        from jinja2 import TemplateError

        name = self._tokenizer.name_or_path
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template is a program: it can fail in every way
            # The function `raise_exception` of templates raises this class and none of its
            # subclasses.
            if type(error) is TemplateError:
                roles = ", ".join(dict(turns))
                raise ModelError(
                    f"the chat template of {name!r} refuses the roles {roles} ({error}); change "
                    "data.prompt.system or data.prompt.examples"
                ) from error
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"the chat template of {name!r} fails ({type(error).__name__}: {reason}); correct "
                "it in the model folder, or set data.prompt.chat_template to false"
            ) from error
        return text


def _check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError if the tokenizer has no chat template that is used by default."""
    name, template = tokenizer.name_or_path, tokenizer.chat_template
    if template is None:
        raise ModelError(
            f"tokenizer {name!r} has no chat template; set data.prompt.chat_template to false or "
            "choose a chat model"
        )
    if isinstance(template, Mapping) and "default" not in template:
        raise ModelError(
            f"tokenizer {name!r} has the chat templates {', '.join(map(repr, template))} and none "
            "named 'default'; give the one to use that name in the model folder, or set "
            "data.prompt.chat_template to false"
        )


def _automatic_bos(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    first: list[int] = tokenizer("a")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] else []


def filter_prompts(
    problems: Sequence[Problem], renderer: PromptRenderer, max_tokens: int
) -> tuple[list[Problem], int]:
    """Return the problems with at most `max_tokens` prompt tokens, and the number of the others.

    Raises DataError if every prompt is longer.
    """
    kept: list[Problem] = []
    lengths: list[int] = []
    for problem in problems:
        # Rendering a large data set takes minutes, and most prompts are far below the limit.
        if renderer.surely_fits(problem, max_tokens):
            kept.append(problem)
            continue
        length = len(renderer.render(problem))
        if length <= max_tokens:
            kept.append(problem)
        else:
            lengths.append(length)
    if not kept:
        raise DataError(
            f"all {len(lengths)} prompts have more than data.prompt.max_tokens {max_tokens} tokens "
            f"(the shortest {min(lengths)}, the longest {max(lengths)}); raise it or shorten the "
            "template"
        )
    return kept, len(lengths)
