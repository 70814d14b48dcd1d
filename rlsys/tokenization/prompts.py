"""From a problem to the prompt's token ids, and the token ids an anytime episode is forced through.

Every text is encoded without special tokens: a chat template writes its own, and a second BOS would
change what the model sees. Pieces that are forced or prefilled are encoded separately and joined as
ids, so that they never merge with the text before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlsys.config import PromptConfig
from rlsys.errors import DataError, ModelError
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.types import Problem, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Facts = Mapping[str, float | str]
"""Numbers and texts that a prompt's template may show, by name."""

_REPLY = "The reply goes here."
"""Stands for a reply while a chat template is looked at."""


class PromptRenderer:
    """Renders problems through one prompt configuration."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: PromptConfig) -> None:
        """Check that the configuration renders at all.

        Raises ModelError if a chat template is asked for and missing, or refuses the turns.
        """
        self._tokenizer = tokenizer
        self._config = config
        self._prefill = encode(tokenizer, config.prefill)
        if config.chat_template and tokenizer.chat_template is None:
            raise ModelError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template; set "
                "data.prompt.chat_template to false or choose a chat model"
            )
        # Without a template nobody else writes the BOS that the tokenizer would put first.
        self._bos = [] if config.chat_template else _automatic_bos(tokenizer)
        self._overhead = len(self._render_text(self._filled("", {})))

    def render(self, problem: Problem) -> Tokens:
        """Return the prompt's ids [tokens]: turns, generation prompt, then the prefill."""
        return self.render_first(problem.text, {})

    def render_first(self, text: str, facts: Facts) -> Tokens:
        """Return the ids of a dialogue's first prompt; `facts` fill the template beside the text.

        Example: with the template `{remaining} tokens. {problem}` the facts {"remaining": 300.0}
        and the text `3+8` make the user turn `300 tokens. 3+8`.
        """
        return np.array(self._render_text(self._filled(text, facts)), dtype=np.int32)

    def render_next(self, text: str, facts: Facts, *, last_token: int) -> Tokens:
        """Return the ids that follow a sampled reply: its end of turn, the user turn, the prefill.

        Only the new turn is rendered and the reply stays as it was sampled, so that what is trained
        on is what was sampled, whatever the template would have made of the reply (Qwen3's drops
        earlier thoughts). `last_token` is the reply's last id: where it is the end of turn that the
        template writes, that is left out.
        """
        ids = encode(self._tokenizer, self._after_reply(self._filled(text, facts)))
        if ids[:1] == [last_token] and last_token in eos_ids(self._tokenizer):
            ids = ids[1:]
        return np.array(ids + self._prefill, dtype=np.int32)

    @property
    def end_of_turn(self) -> int:
        """What a written reply is to end with: the template's end of turn if it is an EOS.

        Some folders name another EOS in their tokenizer than their template and model use.
        """
        if self._config.chat_template:
            first, *_ = encode(self._tokenizer, self._after_reply(""))
            if first in eos_ids(self._tokenizer):
                return first
        return int(self._tokenizer.eos_token_id)

    def _filled(self, text: str, facts: Facts) -> str:
        filled = self._config.template
        for name, value in facts.items():
            shown = value if isinstance(value, str) else f"{value:.10g}"
            filled = filled.replace(f"{{{name}}}", shown)
        return filled.replace("{problem}", text)

    def _after_reply(self, user_turn: str) -> str:
        """What the chat template writes between a reply and the next one."""
        if not self._config.chat_template:
            return user_turn
        turns = [("user", "question"), ("assistant", _REPLY), ("user", user_turn)]
        _, mark, rest = self._through_chat_template(turns).partition(_REPLY)
        if not mark:
            raise ModelError(
                f"the chat template of {self._tokenizer.name_or_path!r} changes what the assistant "
                "said, so a dialogue cannot go on from it; use another model"
            )
        return rest

    def surely_fits(self, problem: Problem, max_tokens: int) -> bool:
        """Tell, without rendering, that a prompt is at most `max_tokens` long; False is no answer.

        A tokenizer writes at most one token per byte; the factor 2 covers Unicode normalisation.
        """
        return self._overhead + 2 * len(problem.text.encode()) <= max_tokens

    def _render_text(self, user_turn: str) -> list[int]:
        turns = self._turns(user_turn)
        if self._config.chat_template:
            ids = encode(self._tokenizer, self._through_chat_template(turns))
        else:
            ids = encode(self._tokenizer, "".join(turn for _, turn in turns))
            if ids[:1] != self._bos:
                ids = self._bos + ids
        return ids + self._prefill

    def _turns(self, user_turn: str) -> list[tuple[str, str]]:
        """(role, text) of every turn; the template applies to the examples' questions too."""
        config = self._config
        turns = [] if config.system is None else [("system", config.system)]
        for question, answer in config.examples:
            # str.replace: LaTeX is full of braces that str.format would take for its own.
            turns += [("user", config.template.replace("{problem}", question))]
            turns += [("assistant", answer)]
        return [*turns, ("user", user_turn)]

    def _through_chat_template(self, turns: Sequence[tuple[str, str]]) -> str:
        from jinja2 import TemplateError

        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            roles = ", ".join(dict(turns))
            raise ModelError(
                f"the chat template of {self._tokenizer.name_or_path!r} refuses the roles {roles} "
                f"({error}); change data.prompt.system or data.prompt.examples"
            ) from error
        return text


def _automatic_bos(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    first: list[int] = tokenizer("a")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] else []


def filter_prompts(
    problems: Sequence[Problem], renderer: PromptRenderer, max_tokens: int
) -> tuple[list[Problem], int]:
    """Return the problems whose prompt has at most `max_tokens` tokens, and how many have more.

    Raises DataError if all have more.
    """
    kept: list[Problem] = []
    lengths: list[int] = []
    for problem in problems:
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
