"""Prompts and forced tokens with a character-level tokenizer built here."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from rlsys.config import AnytimeConfig, PromptConfig
from rlsys.errors import DataError, ModelError
from rlsys.tokenization.model_folder import resolve_model_path
from rlsys.tokenization.prompts import PromptRenderer, filter_prompts
from rlsys.tokenization.think import ThinkTokens
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Problem

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' and 'no' in m.content %}{{ raise_exception('no system') }}{% endif %}"
    "[{{ m.role[0] }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)


def make_tokenizer(
    *, chat: bool = True, eos: bool = True, bos: bool = True, think: bool = True
) -> TokenizersBackend:
    special = ["<unk>", "<s>", "</s>"]
    names = [*special, *CHARACTERS]
    core = Tokenizer(
        models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[], unk_token="<unk>")
    )
    core.decoder = decoders.Fuse()
    if think:
        core.add_tokens([AddedToken("</think>", normalized=False)])
    if bos:  # like Llama's: a BOS before everything that is encoded with special tokens
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>" if eos else None,
        chat_template=TEMPLATE if chat else None,
    )


def problem(text: str) -> Problem:
    return Problem(id=text, text=text, answer="1")


def rendered(config: PromptConfig, text: str = "1+1", **options: bool) -> str:
    tokenizer = make_tokenizer(**options)
    ids = PromptRenderer(tokenizer, config).render(problem(text))
    assert ids.dtype == np.int32
    return str(tokenizer.decode(ids))


def test_chat_template_with_one_bos() -> None:
    assert rendered(PromptConfig()) == "<s>[u]1+1[a]"


def test_every_part_of_a_chat_prompt() -> None:
    config = PromptConfig(
        template="Q: {problem} {x}", system="Be brief.", examples=(("2", "two"),), prefill="<think>"
    )
    assert rendered(config, "{1}") == ("<s>[s]Be brief.[u]Q: 2 {x}[a]two[u]Q: {1} {x}[a]<think>")


def test_joined_texts() -> None:
    config = PromptConfig(
        template="Q: {problem}\nA:", examples=(("2", " two\n\n"),), chat_template=False, prefill=" "
    )
    assert rendered(config, chat=False) == "<s>Q: 2\nA: two\n\nQ: 1+1\nA: "
    assert rendered(config, chat=False, bos=False) == "Q: 2\nA: two\n\nQ: 1+1\nA: "
    written = PromptConfig(template="<s>{problem}", chat_template=False)
    assert rendered(written, chat=False) == "<s>1+1"


def test_prefill_is_encoded_on_its_own() -> None:
    tokenizer = make_tokenizer()
    config = PromptConfig(template="{problem}</thi", chat_template=False, prefill="nk>")
    ids = PromptRenderer(tokenizer, config).render(problem("1"))
    assert tokenizer.convert_tokens_to_ids("</think>") not in ids
    assert tokenizer.decode(ids) == "<s>1</think>"


def test_missing_or_refusing_template_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        rendered(PromptConfig(), chat=False)
    with pytest.raises(ModelError, match=r"refuses the roles system, user \(no system\)"):
        rendered(PromptConfig(system="no"))


def test_long_prompts_are_dropped_and_counted() -> None:
    renderer = PromptRenderer(make_tokenizer(), PromptConfig())
    problems = [problem("1" * length) for length in (1, 5, 6, 90)]  # 7 tokens around each
    assert filter_prompts(problems, renderer, 12) == (problems[:2], 2)
    assert filter_prompts(problems, renderer, 97) == (problems, 0)
    with pytest.raises(DataError, match=r"all 4 prompts .* 7 tokens .*shortest 8, the longest 97"):
        filter_prompts(problems, renderer, 7)


def test_think_tokens() -> None:
    tokenizer = make_tokenizer()
    think = ThinkTokens.resolve(tokenizer, AnytimeConfig())
    assert think.end.token_ids.tolist() == [tokenizer.convert_tokens_to_ids("</think>")]
    assert think.end.stop_token_ids == tuple(think.end.token_ids)
    assert think.end.stop_text is None
    assert think.eos_ids == (2,)
    assert tokenizer.decode(think.closing_ids) == "...\n\n...\n\n"
    assert tokenizer.decode(think.header_ids) == "\n\n**Final Answer**\n"
    assert think.closing_ids.dtype == think.header_ids.dtype == np.int32
    assert len(ThinkTokens.resolve(tokenizer, AnytimeConfig(closing="")).closing_ids) == 0


def test_think_tokens_are_refused_where_an_episode_could_not_be_built() -> None:
    usual = AnytimeConfig()
    for tokenizer, config, said in (
        (make_tokenizer(), AnytimeConfig(think_end="é"), "'é' cannot be written"),
        (make_tokenizer(), AnytimeConfig(think_end=""), "think_end is empty; set it to null"),
        (make_tokenizer(eos=False), usual, "no EOS"),
        (make_tokenizer(), AnytimeConfig(closing="é"), "environment.closing 'é' has characters"),
        (make_tokenizer(), AnytimeConfig(answer_header=""), "answer_header is empty"),
    ):
        with pytest.raises(ModelError, match=said):
            ThinkTokens.resolve(tokenizer, config)


def test_tokenizer_of_a_folder_and_its_generation_settings(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    think = ThinkTokens.resolve(load_tokenizer(str(tmp_path)), AnytimeConfig())
    assert think.eos_ids == (2, 5)


def test_a_missing_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    missing = str(tmp_path / "none")
    with pytest.raises(ModelError, match=r"model folder .*none' does not exist"):
        load_tokenizer(missing)
    with pytest.raises(ModelError, match="'nobody/nothing' is neither a folder nor a hub name"):
        load_tokenizer("nobody/nothing")
    with pytest.raises(ModelError, match="neither a folder nor a hub name"):
        load_tokenizer(str(tmp_path))


def test_model_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsys.tokenization.model_folder.shipped_path", lambda name: tmp_path)
    assert resolve_model_path("tiny") == str(tmp_path)
    assert resolve_model_path(str(tmp_path)) == str(tmp_path)
    assert resolve_model_path("organisation/name") == "organisation/name"
