"""The number of tokens in a text, and the part of a text that a number of tokens pays for."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rlsys.assets import SHIPPED, shipped_path
from rlsys.environments.economics.errors import RequestError
from rlsys.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Encoding

HUB_TIMEOUT_S: Final = 10.0
"""Limit for the one request that asks the hub where a tokenizer file is."""
FAILURE_MEMORY_S: Final = 60.0
"""After a failed request, the hub is not asked for that tokenizer again for this long."""

_FILE: Final = "tokenizer.json"


class TokenCounter(Protocol):
    """Counts the tokens of texts in one unit."""

    @property
    def unit(self) -> str:
        """Name of the unit, sent to clients as `counting_unit`."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`."""
        ...

    def prefix(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` that has at most `tokens` tokens."""
        ...


class WordCounter:
    """An estimate without a tokenizer: 1.33 tokens per word, truncated, at least 1 per text."""

    unit = "words*1.33"
    _TOKENS_PER_WORD = 1.33

    def count(self, text: str) -> int:
        """Return max(1, int(1.33 * words)); the empty text costs 1."""
        return self._tokens(len(text.split()))

    def prefix(self, text: str, tokens: int) -> str:
        """Return the longest prefix of whole words that has at most `tokens` tokens."""
        if tokens < 1:
            return ""
        # The inverse of a truncated product is off by at most one word, so start one word too high.
        words = int((tokens + 1) / self._TOKENS_PER_WORD) + 1
        while words > 0 and self._tokens(words) > tokens:
            words -= 1
        rest = text.split(maxsplit=words)
        return text[: len(text) - len(rest[words])] if len(rest) > words else text

    def _tokens(self, words: int) -> int:
        return max(1, int(self._TOKENS_PER_WORD * words))


class TokenizerCounter:
    """Counts tokens with a `tokenizer.json`, without special tokens and without running code."""

    def __init__(self, name: str) -> None:
        """Load the tokenizer `name`: `tiny`, a folder or a hub name.

        Raises ModelError if it cannot be loaded.
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
        except Exception as error:  # the Rust library raises Exception itself, no subclass
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"tokenizer {name!r} cannot be loaded ({reason}); name another one or check the "
                "network of the machine that runs the environment"
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`; 0 for the empty text."""
        return len(self._encode(text))

    def prefix(self, text: str, tokens: int) -> str:
        """Return `text` up to the end of its token number `tokens`."""
        encoding = self._encode(text)
        if len(encoding) <= tokens:
            return text
        return text[: encoding.offsets[tokens - 1][1]] if tokens > 0 else ""

    def _encode(self, text: str) -> Encoding:
        return self._tokenizer.encode(text, add_special_tokens=False)


WORDS = WordCounter()

_loaded = lru_cache(maxsize=16)(TokenizerCounter)
_failures: dict[str, tuple[float, str]] = {}
"""Hub name -> (time of the failed request, its error message)."""
_asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def load_tokenizer(name: str) -> TokenizerCounter:
    """Return the counter of a tokenizer. A process loads each name once and shares it.

    After a failed request to the hub, the same error is raised immediately for FAILURE_MEMORY_S.
    Resets therefore do not wait for a hub that is down, and the hub is used again once it is back.

    Raises ModelError if the tokenizer cannot be loaded.
    """
    with _asking[name]:  # sessions reset in parallel threads; only one of them asks the hub
        failed_at, sentence = _failures.get(name, (-math.inf, ""))
        if time.monotonic() - failed_at < FAILURE_MEMORY_S:
            raise ModelError(sentence)
        try:
            return _loaded(name)
        except ModelError as error:
            if not Path(name).is_dir():  # a folder fails at once and may be repaired at any time
                _failures[name] = (time.monotonic(), str(error))
            raise


def _hub_file(name: str) -> str:
    """Return the path of a hub tokenizer; downloads it if the local cache does not hold it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return hf_hub_download(name, _FILE, local_files_only=True)
    except LocalEntryNotFoundError:
        # hf_hub_download alone would try a hub that is down six times, which takes over 23 s.
        get_hf_file_metadata(hf_hub_url(name, _FILE), timeout=HUB_TIMEOUT_S)
        return hf_hub_download(name, _FILE)


def allowed_tokenizer(name: str, allowed: Sequence[str]) -> TokenCounter:
    """Return the counter of a tokenizer that a client named.

    Raises RequestError if `allowed` does not hold the name, ModelError if it cannot be loaded.
    """
    if name not in allowed:
        raise RequestError(
            f"tokenizer_name {name[:200]!r} is not allowed here; use one of {', '.join(allowed)}"
        )
    return load_tokenizer(name)
