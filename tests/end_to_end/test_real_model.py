"""One training step of a real pretrained model. Skipped if the package with the model is unavailable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.models.names import SMOLLM2, resolve_model
from tests.end_to_end.helpers import rows, train
from tests.factories import ROOT

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.nightly]

TASKS = [
    {
        "task_id": number,
        "text": f"Write a function to return the {what} of a list of numbers.",
        "code": f"def {name}(xs):\n    return {call}(xs)\n",
        "test_list": [f"assert {name}([3, 1, 2]) == {call}([3, 1, 2])", f"assert {name}([5]) == {call}([5])"],
    }
    for number, (name, what, call) in enumerate(
        [("largest", "largest", "max"), ("smallest", "smallest", "min"), ("total", "sum", "sum")]
    )
]


@pytest.fixture(scope="module")
def model() -> str:
    """The folder of the model."""
    try:
        return resolve_model(SMOLLM2)
    except UserError as error:
        pytest.skip(str(error))


def test_the_tokenizer_and_its_chat_template_survived_the_conversion(model: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer("def f(x):\n    return 12 + x").input_ids) == "def f(x):\n    return 12 + x"
    assert tokenizer.eos_token == "<|im_end|>"


def test_the_pretrained_weights_survived_the_conversion(model: str) -> None:
    """Broken weights would still train and save, but would not continue this sentence."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = int(AutoModelForCausalLM.from_pretrained(model)(ids).logits[0, -1].argmax())
    assert tokenizer.decode(best).strip() == "Paris"


def test_two_agents_train_for_a_step(model: str, tmp_path: Path) -> None:
    data = tmp_path / "mbpp.jsonl"
    data.write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    result = train(
        "--config",
        str(ROOT / "configs" / "magrpo_mbpp_smollm2.yaml"),
        "--override",
        f"dataset.name={data}",
        "dataset.train_split=test[:2]",
        "dataset.eval_split=test[2:]",
        "magrpo.max_steps=1",
        "magrpo.rollout_buffer_size=2",
        "magrpo.max_new_tokens=32",
        "magrpo.estimator=mareinforce",
        "reward_processor.shift=1",
        "output.save_final_model=false",
        f"output.base_dir={tmp_path}",
        "output.run_name=real",
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    (step,) = rows(tmp_path / "real", "step")
    assert step["env_steps"] == 2 * 4
    for agent in (0, 1):
        assert step[f"agent_{agent}/weight_version"] == 1
        assert step[f"agent_{agent}/grad_norm"] > 0
        assert step[f"agent_{agent}/logprob_gap"] < 1e-3
    before, after = rows(tmp_path / "real", "eval")
    assert before["eval/episodes"] == after["eval/episodes"] == 1
    shutil.rmtree(tmp_path / "real" / "checkpoints")  # 3 GB
