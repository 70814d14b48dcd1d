"""Small models of the families whose tokenizers have no token for `</think>`.

A tokenizer is trained here with the pre-tokenizer, the special tokens and a chat template in the
form of its family. The model has random weights, except that it likes to write the parts of
`</think>` one after the other: otherwise no thought of a random model would ever end.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

Family = Literal["qwen2.5", "llama-3"]
FAMILIES: tuple[Family, ...] = ("qwen2.5", "llama-3")

END = "</think>"
_DIGITS = {"qwen2.5": r"\p{N}", "llama-3": r"\p{N}{1,3}"}
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How both families cut text before merging; they differ in how many digits stand together."""

_SPECIAL = {
    "qwen2.5": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "llama-3": (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|eot_id|>",
    ),
}
_TEMPLATE = {
    "qwen2.5": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama-3": (
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
        "'<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
}
_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_CORPUS = (
    "<|x|> I think, so it is. Let me think about this: 3+8-2=9, then 12-7=5.\n\n",
    "Wait, is that right? The answer is 9.\n\n**Final Answer**\n\\boxed{9}\n",
    "if (a) { return a</b>; }\n</div>\n</p>\n\n<b>bold</b> text </i>.\n",
    "user assistant system\nThink step by step and answer.</em>\n",
)


def family_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of about 350 tokens; `</think>` is five of them."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(_SPLIT.replace("DIGITS", _DIGITS[family])), behavior="isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([*_CORPUS] * 3, trainer)
    core.add_special_tokens([AddedToken(t, normalized=False) for t in _SPECIAL[family]])
    qwen = family == "qwen2.5"
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=None if qwen else "<|begin_of_text|>",
        eos_token="<|im_end|>" if qwen else "<|eot_id|>",
        chat_template=_TEMPLATE[family],
        clean_up_tokenization_spaces=False,
    )


def build_family(family: Family, folder: Path) -> Path:
    """Write tokenizer, settings and weights of the family into `folder`; return it."""
    if family == "qwen2.5":
        return build_model("qwen2", {}, folder)
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    return build_model("llama", {"rope_parameters": rope}, folder, family)


def build_model(
    model_type: str, settings: dict[str, Any], folder: Path, family: Family = "qwen2.5"
) -> Path:
    """Write a random model of any type with the tokenizer of a family; return its folder."""
    tokenizer = family_tokenizer(family)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, **{"vocab_size": len(tokenizer), "pad_token_id": 0, **_SHAPE, **settings}
    )
    model = AutoModelForCausalLM.from_config(config)
    _teach_end(model, tokenizer)
    model.save_pretrained(folder)
    eos = {"eos_token_id": [tokenizer.eos_token_id]}
    (folder / "generation_config.json").write_text(json.dumps(eos))
    return folder


def _teach_end(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Make the tokens that begin `</think>` likely everywhere, and the others likely in order.

    Attention and MLP weights of this size add little to the embedding of the last token, so the
    last norm hands on its direction. A row of the head in this direction follows the token.
    """
    begin, *middle, finish = tokenizer.encode(END, add_special_tokens=False)
    begins = [begin, *tokenizer.encode(".</", add_special_tokens=False)]
    finishes = [finish, *tokenizer.encode(">\n\n", add_special_tokens=False)]
    with torch.no_grad():
        embeddings_VH = model.get_input_embeddings().weight
        embeddings_VH[:, 0] = 0.05  # a direction that all tokens share
        directions_VH = embeddings_VH / embeddings_VH.norm(dim=-1, keepdim=True)
        head_VH = model.get_output_embeddings().weight
        head_VH[begins] = 1.5 * torch.eye(head_VH.shape[1])[0]
        head_VH[middle[0]] = 1.2 * directions_VH[begins].sum(0)
        for before, token in pairwise(middle):
            head_VH[token] = 1.2 * directions_VH[before]
        head_VH[finishes] = 1.2 * directions_VH[middle[-1]]
