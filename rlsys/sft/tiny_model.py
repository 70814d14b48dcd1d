"""The tiny reasoner before training: a character tokenizer and a fresh Llama of 0.86 M parameters.

Every printable ASCII character is a token, so the tokenizer can encode any ASCII problem, template
or observation. Texts that occur in every anytime episode are one token each: `<think>`, `</think>`,
the answer header and `\\boxed{`. They are not special tokens, so decoding keeps them. Grading needs
that: it finds the box in the decoded text.

    <bos>3+8-2=<think>11;9</think>\\n\\n**Final Answer**\\n\\boxed{9}<eos>
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsys.config import AnytimeConfig

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerFast

TINY_ENVIRONMENT: Final = AnytimeConfig(
    closing="", answer_header="\n\n**Final Answer**\n\\boxed{", answer_tokens=6
)
"""The format of an episode of the tiny reasoner, in supervised rows and in reinforcement learning.

The answer header opens the box, so an answer consists of its digits, the closing brace and `<eos>`.
Six tokens are enough for problems with up to twelve numbers. Only `</think>` closes a cut thought:
more text would cost tokens and give the model no information.
"""

PAD, UNKNOWN, BOS, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
WHOLE_TEXTS: Final = ("<think>", "</think>", "\n\n**Final Answer**\n", "\\boxed{")
CHARACTERS: Final = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ message['content'] + '=' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<think>' }}{% endif %}"
)


class TinyShape(NamedTuple):
    """The size of a model that is built from random weights."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    mlp: int = 384
    max_length: int = 1024
    """Longest sequence in tokens."""


REASONER: Final = TinyShape()
"""The shipped reasoners: 0.86 M parameters. The head size 32 is the smallest one that the CPU
attention of vLLM supports."""
SEARCHER: Final = TinyShape(layers=8, hidden=320, heads=5, mlp=896, max_length=2048)
"""For Countdown with three and four numbers: 10.2 M parameters (docs/countdown.md)."""


def build_tiny(folder: Path, seed: int, shape: TinyShape = REASONER) -> Path:
    """Write the tokenizer, the configuration and fresh float32 weights into `folder`; return it."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(shape.max_length)
    tokenizer.save_pretrained(folder)
    tiny_config(tokenizer, shape).save_pretrained(folder)
    weights = fresh_weights(len(tokenizer), seed, shape)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def tiny_tokenizer(max_length: int = REASONER.max_length) -> PreTrainedTokenizerFast:
    """The character tokenizer with its chat template; unknown characters become `<unk>`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    names = (PAD, UNKNOWN, BOS, EOS, *CHARACTERS)
    vocabulary = {name: i for i, name in enumerate(names)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    core.decoder = decoders.Fuse()
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in WHOLE_TEXTS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BOS,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast, shape: TinyShape = REASONER) -> LlamaConfig:
    """Return the model configuration: Llama with tied embeddings."""
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=shape.max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )


def fresh_weights(
    vocabulary: int, seed: int, shape: TinyShape = REASONER
) -> dict[str, NDArray[np.float32]]:
    """Return Llama weights by name: normal matrices with deviation 0.02, norm weights 1."""
    rng = np.random.default_rng(seed)
    hidden, mlp = shape.hidden, shape.mlp

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.normal(0.0, 0.02, (rows, columns)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocabulary, hidden)}
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        for projection in "qkvo":
            weights[f"{name}.self_attn.{projection}_proj.weight"] = matrix(hidden, hidden)
        for projection in ("gate", "up"):
            weights[f"{name}.mlp.{projection}_proj.weight"] = matrix(mlp, hidden)
        weights[f"{name}.mlp.down_proj.weight"] = matrix(hidden, mlp)
        for norm in ("input", "post_attention"):
            weights[f"{name}.{norm}_layernorm.weight"] = np.ones(hidden, np.float32)
    weights["model.norm.weight"] = np.ones(hidden, np.float32)
    return weights
