"""benchmarks/in_process.py: groups do not depend on the requests beside them, and log-probabilities are the model's."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.in_process import Policy
from benchmarks.in_process import main as train
from benchmarks.learning.measures import read_lines
from benchmarks.learning.study import CONFIGS
from marl_ray.config import from_keywords
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.evaluation.model_sources import find_model_sources
from marl_ray.models.names import resolve_model

PROMPTS = ("b a c", "a b c", "write a row")


@pytest.fixture(scope="module")
def policy() -> Policy:
    config = from_keywords(CONFIGS / "toy_roll_call.yaml", "magrpo", {"num_agents": 2})
    return Policy(config, config.policy_of(0), 1)


def sample(policy: Policy, prompts: tuple[str, ...]) -> list[Generation]:
    async def together() -> list[Generation]:
        waiting = []
        for seed, prompt in enumerate(prompts):
            waiting.append(policy.generate(prompt, SamplingSpec(4, 6, 1.3, 1.0, None, seed)))
        return await asyncio.gather(*waiting)

    return asyncio.run(together())


def test_a_group_is_the_same_alone_and_beside_others(policy: Policy) -> None:
    (alone,) = sample(policy, PROMPTS[:1])
    beside = sample(policy, PROMPTS)[0]
    assert [one.token_ids for one in beside.completions] == [one.token_ids for one in alone.completions]


def test_log_probabilities_are_the_model_s_at_the_temperature(policy: Policy) -> None:
    for generation in sample(policy, PROMPTS):
        for completion in generation.completions:
            ids = torch.tensor([generation.prompt_ids + completion.token_ids])
            with torch.no_grad():
                scores = policy._model(input_ids=ids).logits[0].double() / 1.3
            place = len(generation.prompt_ids) - 1
            expected = scores.log_softmax(-1)[place:-1].gather(1, ids[0, place + 1 :, None])[:, 0]
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_completion_ends_with_its_end_token(policy: Policy) -> None:
    eos = policy.learner.tokenizer.eos_token_id
    (generation,) = sample(policy, PROMPTS[:1])
    for completion in generation.completions:
        assert eos not in completion.token_ids[:-1]
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] == eos)


@pytest.mark.slow
def test_a_run_writes_its_folder(tmp_path: Path) -> None:
    """Play programs behind the gateway, evaluate, and export the trained policies."""
    settings: dict[str, Any] = {
        "output.base_dir": tmp_path,
        "output.run_name": "run",
        "magrpo.max_steps": 2,
        "magrpo.eval_interval": 1,
        "magrpo.eval_num_generations": 2,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    train(["--config", str(CONFIGS / "toy_relay.yaml"), "--override", *overrides])
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/turn_1/reward_mean" in row] == [0, 1, 2]
    run = tmp_path / "run"
    assert not (run / "checkpoints").exists()
    # The folder can be evaluated like a run of `marl-ray train`, for example with a run of another seed.
    (source,) = find_model_sources([str(run)], from_keywords(CONFIGS / "toy_relay.yaml", "magrpo", {}).agents)
    for agent in (0, 1):
        assert Path(resolve_model(source.weights[agent])) == run / "models" / f"agent_{agent}"
