"""Model folders and templates that cannot work are refused in one sentence before a run starts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from families import build_family, family_tokenizer

from rlsys.config import DataConfig, ModelConfig, PromptConfig, RunConfig
from rlsys.errors import ModelError
from rlsys.launch.inputs import check_inputs

R1 = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
FORGETS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_family("qwen2.5", tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def check(folder: Path, **prompt: Any) -> None:
    check_inputs(
        RunConfig(
            model=ModelConfig(path=str(folder)), data=DataConfig(prompt=PromptConfig(**prompt))
        )
    )


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def lfs(file: str) -> Callable[[Path], None]:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"

    def write(folder: Path) -> None:
        (folder / file).write_text(text)

    return write


def cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def lose_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def add_tokens(folder: Path) -> None:
    tokenizer = family_tokenizer("qwen2.5")
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)


def settings(**values: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **values)


def generation(**values: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "generation_config.json", **values)


FOLDERS: list[tuple[Callable[[Path], None], str]] = [
    (lfs("model.safetensors"), r"model.safetensors of model.path is a Git LFS pointer"),
    (lfs("tokenizer.json"), r"tokenizer.json of model.path is a Git LFS pointer"),
    (cut_off, r"model.safetensors of model.path is damaged or not whole"),
    (lose_shard, r"2 weight files, of which 1 are missing \(model-00002-of-00002.safetensors\)"),
    (add_tokens, r"2 tokens \('<think>', '</think>'\) beyond the 363 rows of the embedding"),
    (
        settings(quantization_config={"quant_method": "gptq", "bits": 4}),
        r"is quantized \(gptq\), .* name the folder of the unquantized model",
    ),
    (settings(model_type="bert"), r"type 'bert', which is no causal language model"),
    (settings(model_type="nothing"), r"config.json of model.path .* cannot be used"),
    (settings(model_type="gemma3"), r"'gemma3' has parts for images or sound"),
    (
        settings(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2),
        "is a mixture of experts, whose weights engines on the CPU cannot replace",
    ),
    (settings(model_type="t5"), r"type 't5', which is no causal language model"),
    (
        settings(model_type="gemma2", final_logit_softcapping=30.0, head_dim=32),
        r"changes its logits \(final_logit_softcapping\)",
    ),
    (generation(eos_token_id="<|im_end|>"), r"gives the EOS as '<\|im_end\|>'.*eos_token_id: 362"),
    (generation(eos_token_id=None, eos_token="<|im_end|>"), r"gives the EOS as '<\|im_end\|>'"),
]


def test_folders_that_cannot_be_trained(whole: Path, tmp_path: Path) -> None:
    check(whole)
    for number, (spoil, sentence) in enumerate(FOLDERS):
        folder = Path(shutil.copytree(whole, tmp_path / str(number)))
        spoil(folder)
        with pytest.raises(ModelError, match=sentence) as caught:
            check(folder)
        assert "\n" not in str(caught.value)


TEMPLATES: list[tuple[object, dict[str, object], str]] = [
    (R1, {"prefill": "<think>\n"}, "already ends with '<think>', .* open it a second time"),
    (FORGETS, {"examples": [["2+2", "2 and 2.</think>4"]]}, "leaves out a part of the assistant"),
    (NO_SYSTEM, {"system": "Be brief."}, "leaves out a part of the system turn 'Be brief.'"),
    ("{{ messages[0].content + 1 }}", {}, r"fails \(TypeError: .*\); correct it"),
    ("{{ messages[0].a.b }}", {}, r"fails \(UndefinedError"),
    ("{% if %}", {}, r"fails \(TemplateSyntaxError"),
    ("{{ raise_exception('no') }}", {}, r"refuses the roles user \(no\)"),
    ({"tool_use": R1, "rag": R1}, {}, "templates 'tool_use', 'rag' and none named 'default'"),
    (None, {}, "has no chat template"),
]


def test_templates_that_cannot_make_the_prompt(folder: Path) -> None:
    tokenizer = family_tokenizer("qwen2.5")
    for template, prompt, sentence in TEMPLATES:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        shutil.rmtree(folder / "additional_chat_templates", ignore_errors=True)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        with pytest.raises(ModelError, match=sentence) as caught:
            check(folder, **prompt)
        assert "\n" not in str(caught.value)
    tokenizer.chat_template = R1
    tokenizer.save_pretrained(folder)
    check(folder, prefill="So,", examples=[["2+2", "2 and 2.</think>4"]], system="Be brief.")
