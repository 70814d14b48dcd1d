"""Tokenizers of model folders: loading them, encoding texts, and the tokens that end a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rlsys.errors import ModelError
from rlsys.tokenization.model_folder import resolve_model_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(path: str, key: str = "model.path") -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder, hub name or shipped model.

    No code from the folder is executed. `key` is the configuration key of the path, for errors.
    Raises ModelError if there is no tokenizer.
    """
    from transformers import AutoTokenizer

    resolved = resolve_model_path(path, key)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            resolved, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{key} {path!r} is neither a folder nor a hub name with a tokenizer that loads "
            f"({reason}); correct it"
        ) from error
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of `text`, without special tokens around it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def eos_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the EOS tokens: that of the tokenizer first, then those of the generation settings.

    Chat models often end a turn with a token that only generation_config.json lists. Raises
    ModelError if the tokenizer has no EOS.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"tokenizer {tokenizer.name_or_path!r} has no EOS token, so no answer could end; "
            "set eos_token in its tokenizer_config.json"
        )
    ids = [int(tokenizer.eos_token_id)]
    settings = Path(tokenizer.name_or_path or "") / "generation_config.json"
    if settings.is_file():
        more = json.loads(settings.read_text("utf-8")).get("eos_token_id")
        ids += more if isinstance(more, list) else [] if more is None else [more]
    return tuple(dict.fromkeys(ids))
