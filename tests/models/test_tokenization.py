"""Chat templates, encoding of prompts, and tokenizer arguments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from marl_ray.config import ModelConfig, from_tree
from marl_ray.core.chat import with_system_prompt
from marl_ray.core.errors import UserError
from marl_ray.models.names import check_model, describe_prompts
from marl_ray.models.tokenization import decide_template, encode_prompt, load_tokenizer, save_tokenizer
from marl_ray.toy import BASE_PATH

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace("assistant\n", "assistant\n{% if enable_thinking is false %}<think></think>{% endif %}")
WITH_EOS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
REFUSING = "{{ raise_exception('no assistants here') }}"


def model(parent: Path, name: str, template: str | None, eos: list[str], generation: list[str] | None = None) -> str:
    """Return a model folder with the bundled tokenizer, a template, and EOS tokens of the tokenizer and generation
    config."""
    folder = parent / name
    shutil.copytree(BASE_PATH, folder)
    tokenizer = load_tokenizer(str(folder), ModelConfig(max_length=1024))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = eos[0]
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    ids = [tokenizer.convert_tokens_to_ids(token) for token in generation or eos]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return str(folder)


def decide(name: str, use: bool | None = None) -> tuple[bool, str]:
    config = ModelConfig(max_length=1024, use_chat_template=use)
    return decide_template(name, load_tokenizer(name, config), config)


def test_a_base_model_with_a_chat_template_gets_raw_text(tmp_path: Path) -> None:
    name = model(tmp_path, "Coder-3B", CHATML, ["<|endoftext|>"])
    through, why = decide(name)
    assert not through
    assert "stops at <|endoftext|>, not where its template ends an answer" in why
    tokenizer = load_tokenizer(name, ModelConfig(max_length=1024))
    assert encode_prompt(tokenizer, "def f(x):", through) == tokenizer("def f(x):").input_ids


@pytest.mark.parametrize(
    ("eos", "generation"),
    [(["<|im_end|>"], None), (["<|endoftext|>"], ["<|im_end|>", "<|endoftext|>"])],
    ids=["the tokenizer's end", "one of several ends"],
)
def test_a_chat_model_is_recognised_by_its_stop_tokens(
    tmp_path: Path, eos: list[str], generation: list[str] | None
) -> None:
    name = model(tmp_path, "Coder-3B", CHATML, eos, generation)
    through, why = decide(name)
    assert through
    assert "stops at <|im_end|>" in why
    tokenizer = load_tokenizer(name, ModelConfig(max_length=1024))
    ids = encode_prompt(tokenizer, "def f(x):", through)
    assert tokenizer.decode(ids) == "<|im_start|>user\ndef f(x):<|im_end|>\n<|im_start|>assistant\n"


def test_messages_and_variables_reach_the_template(tmp_path: Path) -> None:
    name = model(tmp_path, "Coder-3B", THINKING, ["<|im_end|>"])
    tokenizer = load_tokenizer(name, ModelConfig(max_length=1024))
    prompt = with_system_prompt("def f(x):", "Be brief.")
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    user = "<|im_start|>user\ndef f(x):<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(encode_prompt(tokenizer, prompt, True)) == system + user
    thought = encode_prompt(tokenizer, prompt, True, {"enable_thinking": False})
    assert tokenizer.decode(thought) == system + user + "<think></think>"
    plain = encode_prompt(tokenizer, prompt, False)
    assert plain == tokenizer("Be brief.\n\ndef f(x):").input_ids, "without a template, contents with an empty line"


def test_a_template_that_prints_the_date_prints_the_date_of_the_run(tmp_path: Path) -> None:
    template = "Today is {{ strftime_now('%d %b %Y') }}. {{ messages[0].content }}"
    name = model(tmp_path, "Coder-3B", template, ["<|im_end|>"])
    tokenizer = load_tokenizer(name, ModelConfig(max_length=1024, template_date="2026-01-31"))
    assert tokenizer.decode(encode_prompt(tokenizer, "Hi.", True)) == "Today is 31 Jan 2026. Hi."


def test_a_generation_config_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(BASE_PATH, folder)
    (folder / "generation_config.json").write_text(json.dumps({"num_return_sequences": 4}), encoding="utf-8")
    with pytest.raises(UserError, match=r"its generation_config.json is invalid: .*return_sequences"):
        check_model(str(folder), ModelConfig(max_length=1024))


def test_a_saved_tokenizer_has_only_what_transformers_4_understands(tmp_path: Path) -> None:
    name = model(tmp_path, "Coder-3B", CHATML, ["<|im_end|>"])
    core = load_tokenizer(name, ModelConfig(max_length=1024)).backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    save_tokenizer(tokenizer, tmp_path / "saved")
    content = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert content["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in content
    again = load_tokenizer(str(tmp_path / "saved"), ModelConfig(max_length=1024))
    text = "def f(x):<|im_start|>user<|im_end|>"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert "<|im_start|>" in again.all_special_tokens


def test_names_of_base_models_take_precedence_over_stop_tokens(tmp_path: Path) -> None:
    assert decide(model(tmp_path, "Writer-7B-Chat", WITH_EOS, ["<|endoftext|>"]))[0]
    for name in ("Writer-7B-Base", "writer-4b-pt"):
        through, why = decide(model(tmp_path, name, WITH_EOS, ["<|endoftext|>"]))
        assert not through
        assert "its name says" in why


def test_the_setting_takes_precedence(tmp_path: Path) -> None:
    base = model(tmp_path, "Coder-3B", CHATML, ["<|endoftext|>"])
    assert decide(base, False) == (False, "model.use_chat_template is false")
    through, why = decide(base, True)
    assert through
    assert why.startswith("model.use_chat_template is true, though it is a base model")
    chat = model(tmp_path, "Coder-3B-Instruct", CHATML, ["<|im_end|>"])
    assert decide(chat, True) == (True, "model.use_chat_template is true")
    through, why = decide(chat, False)
    assert not through
    assert why.startswith("model.use_chat_template is false, though it stops at <|im_end|>")


def test_a_template_that_cannot_render_a_prompt_is_rejected(tmp_path: Path) -> None:
    broken = model(tmp_path, "Broken", "{% for x %}", ["<|endoftext|>"])
    assert not decide(broken, False)[0]
    with pytest.raises(
        UserError, match=r"^the chat template of .*Broken cannot render a prompt \(.*\): set model.use_ch"
    ):
        decide(broken, True)


def test_a_missing_template_or_one_without_assistant_messages(tmp_path: Path) -> None:
    plain = model(tmp_path, "Plain-Instruct", None, ["<|endoftext|>"])
    assert decide(plain) == (False, "its tokenizer has no chat template")
    with pytest.raises(UserError, match=r"use_chat_template is true but .*Plain-Instruct has no chat template"):
        check_model(plain, ModelConfig(max_length=1024, use_chat_template=True))
    assert not decide(model(tmp_path, "Odd", REFUSING, ["<|endoftext|>"]))[0]


def test_prompt_formats_of_several_agents_and_of_a_dry_run(tmp_path: Path) -> None:
    base = model(tmp_path, "Coder-3B", CHATML, ["<|endoftext|>"])
    chat = model(tmp_path, "Coder-3B-Instruct", CHATML, ["<|im_end|>"])
    tree: dict[str, Any] = {
        "agents": [base, chat, "someone/elsewhere"],
        "model": {"max_length": 1024},
        "dataset": {"name": "bundled:toy"},
    }
    config = from_tree(tree, "magrpo")
    templates = {name: check_model(name, config.model) for name in (base, chat)}
    first, second, third = describe_prompts(config.agents, config.model.use_chat_template, templates)
    assert first.startswith("agent 0: prompts go to the model as they are (")
    assert second.startswith("agent 1: prompts go through the chat template (")
    assert third == "agent 2: its tokenizer, not read in a dry run, decides on the chat template"
    assert describe_prompts(config.agents, False, templates)[2] == (
        "agent 2: prompts go to the model as they are (model.use_chat_template is false)"
    )


def tokenizer_config(**arguments: object) -> ModelConfig:
    model = {
        "name": str(BASE_PATH),
        "max_length": 1024,
        "tokenizer_kwargs": arguments,
        "model_kwargs": {"trust_remote_code": True},
    }
    return from_tree({"model": model, "dataset": {"name": "bundled:toy"}}, "magrpo").model


def test_remote_code_is_allowed_by_one_setting() -> None:
    config = tokenizer_config(trust_remote_code=True, padding_side="left", use_fast=True)
    assert config.tokenizer_kwargs == {"padding_side": "left", "use_fast": True}
    assert load_tokenizer(str(BASE_PATH), config).padding_side == "left"
    assert not check_model(str(BASE_PATH), config)[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"trust_remote_code": False}, "one setting for model and tokenizer: set model.model_kwargs.trust_remote_code"),
        ({"trust_remote_code:true": None}, "'trust_remote_code:true', which is not a name: write name: value"),
        ({"padding_side": "middle"}, "padding_side should be left, right, got 'middle'"),
        ({"use_fast": "yes"}, "use_fast should be true, false, got 'yes'"),
        ({"add_eos_token": True}, "add_eos_token should be false, got True"),
        ({"token": "hf_x"}, "set the variable HF_TOKEN"),
        ({"config": "x"}, "conflicts with model.name, which selects the tokenizer"),
    ],
)
def test_invalid_tokenizer_arguments_are_rejected(arguments: dict, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        tokenizer_config(**arguments)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
