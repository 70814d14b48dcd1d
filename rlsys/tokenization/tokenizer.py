"""Tokenizers of model folders: loading them, encoding texts, and the tokens that end a turn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsys.errors import ModelError
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.tokenization.weight_files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PLACEHOLDER: Final = re.compile("pad|image|audio|video|vision")
"""Special tokens that no text of a run is encoded as."""


def load_tokenizer(path: str, key: str = "model.path") -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder, hub name or shipped model.

    No code from the folder is executed. `key` is the configuration key of the path, for errors.
    Raises ModelError if there is no tokenizer, or if it has tokens that the model does not know.
    """
    from transformers import AutoTokenizer

    resolved = resolve_model_path(path, key)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            resolved, trust_remote_code=False
        )
    # Files of a tokenizer are read by many libraries, which meet damage with errors of every kind.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{key} {path!r} is neither a folder nor a hub name with a tokenizer that loads "
            f"({reason}); correct it"
        ) from error
    _check_vocabulary(tokenizer, resolved, path, key)
    return tokenizer


def _check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, resolved: str, path: str, key: str
) -> None:
    """Raise ModelError if the tokenizer has ids for which the model has no embedding."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(resolved, trust_remote_code=False)
    except Exception:  # a tokenizer without a model is enough here; `check_model` checks models
        return
    rows = getattr(config.get_text_config(), "vocab_size", None)
    if rows is None:
        return
    special = set(tokenizer.all_special_tokens)
    beyond = [
        text
        for text, token in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        if token >= rows and not (text in special and _PLACEHOLDER.search(text.lower()))
    ]
    if beyond:
        shown = ", ".join(map(repr, beyond[:3])) + ", ..." * (len(beyond) > 3)
        raise ModelError(
            f"the tokenizer of {key} {path!r} has {len(beyond)} tokens ({shown}) beyond the {rows} "
            "rows of the embedding; call resize_token_embeddings(len(tokenizer)) on the model and "
            "save both, or remove the tokens"
        )


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
        written = read_json(settings, "the model")
        more = written.get("eos_token_id")
        more = written.get("eos_token") if more is None else more
        for token in more if isinstance(more, list) else [] if more is None else [more]:
            ids.append(_checked_id(token, tokenizer, settings))
    return tuple(dict.fromkeys(ids))


def _checked_id(token: object, tokenizer: PreTrainedTokenizerBase, settings: Path) -> int:
    """Return an EOS of the generation settings. Raises ModelError if it is no id of a token."""
    if isinstance(token, int) and token >= 0:
        return token
    known = tokenizer.get_vocab().get(str(token), "and the id of that token")
    raise ModelError(
        f"{settings} gives the EOS as {token!r}, which is no id of a token; write "
        f"eos_token_id: {known} instead"
    )
