"""How many tokens a text costs, and how much of it a number of tokens buys."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from rlsys.assets import SHIPPED, shipped_path
from rlsys.environments.economics.errors import RequestError
from rlsys.errors import ModelError

HUB_TIMEOUT_S: Final = 10.0
"""How long the hub has to say where a tokenizer is; asked once, not again and again."""
FAILURE_MEMORY_S: Final = 60.0
"""How long a tokenizer that the hub did not give is not asked for again."""

_FILE: Final = "tokenizer.json"


class TokenCounter(Protocol):
    """Counts texts in one unit."""

    @property
    def unit(self) -> str:
        """The unit in words, as clients see it in `counting_unit`."""
        ...

    def count(self, text: str) -> int:
        """Return what `text` costs."""
        ...

    def prefix(self, text: str, tokens: int) -> str:
        """Return the longest beginning of `text` that costs no more than `tokens`."""
        ...


class WordCounter:
    """An estimate without a tokenizer: 1.33 tokens per word, truncated, at least one a text."""

    unit = "words*1.33"
    _TOKENS_PER_WORD = 1.33

    def count(self, text: str) -> int:
        """Return max(1, int(1.33 * words)); the empty text costs 1."""
        return self._tokens(len(text.split()))

    def prefix(self, text: str, tokens: int) -> str:
        """Return the longest run of whole words from the start that `tokens` pay for."""
        if tokens < 1:
            return ""
        words = int((tokens + 1) / self._TOKENS_PER_WORD) + 1
        while words > 0 and self._tokens(words) > tokens:
            words -= 1
        rest = text.split(maxsplit=words)
        return text[: len(text) - len(rest[words])] if len(rest) > words else text

    def _tokens(self, words: int) -> int:
        return max(1, int(self._TOKENS_PER_WORD * words))


class TokenizerCounter:
    """Tokens of a `tokenizer.json`, without special tokens. Runs no code that comes with it."""

    def __init__(self, name: str) -> None:
        """Load from `tiny`, a folder or the hub.

        Raises ModelError if that fails.
        """
        from tokenizers import Tokenizer

        self.unit = f"tokens of {name}"
        try:
            if name in SHIPPED:
                path = str(shipped_path(name) / _FILE)
            elif Path(name).is_dir():
                path = str(Path(name) / _FILE)
            else:
                path = _hub_file(name)
            tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # the Rust library raises bare Exception
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"tokenizer {name!r} cannot be loaded ({reason}); name another one, or check the "
                "network of the machine that runs the environment"
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`; the empty text costs nothing."""
        return len(self._encode(text))

    def prefix(self, text: str, tokens: int) -> str:
        """Return `text` up to the end of its token number `tokens`."""
        encoding = self._encode(text)
        if len(encoding) <= tokens:
            return text
        return text[: encoding.offsets[tokens - 1][1]] if tokens > 0 else ""

    def _encode(self, text: str) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=False)


WORDS = WordCounter()

_loaded = lru_cache(maxsize=16)(TokenizerCounter)
_failures: dict[str, tuple[float, str]] = {}
"""Hub name to when it failed, and the sentence."""
_asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def load_tokenizer(name: str) -> TokenizerCounter:
    """Return the counter of a tokenizer; one per name and process, for they are read-only.

    A failure of the hub is answered with the same sentence, and at once, for FAILURE_MEMORY_S, so
    that a network that comes back is noticed and one that stays away makes nobody wait.

    Raises ModelError if it cannot be loaded.
    """
    with _asking[name]:  # sessions reset in threads of their own, many at once
        failed_at, sentence = _failures.get(name, (-math.inf, ""))
        if time.monotonic() - failed_at < FAILURE_MEMORY_S:
            raise ModelError(sentence)
        try:
            return _loaded(name)
        except ModelError as error:
            if not Path(name).is_dir():  # folders fail fast, and may be mended meanwhile
                _failures[name] = (time.monotonic(), str(error))
            raise


def _hub_file(name: str) -> str:
    """Return the path of a hub tokenizer, from the cache of the hub if it is there."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return hf_hub_download(name, _FILE, local_files_only=True)
    except LocalEntryNotFoundError:
        # A download alone asks a hub that is away six times, for 23 s and more.
        get_hf_file_metadata(hf_hub_url(name, _FILE), timeout=HUB_TIMEOUT_S)
        return hf_hub_download(name, _FILE)


def allowed_tokenizer(name: str, allowed: Sequence[str]) -> TokenCounter:
    """Return the counter of a tokenizer that a client names.

    Raises RequestError if it is not on the list, ModelError if it cannot be loaded.
    """
    if name not in allowed:
        raise RequestError(
            f"tokenizer_name {name[:200]!r} is not allowed here; use one of {', '.join(allowed)}"
        )
    return load_tokenizer(name)
