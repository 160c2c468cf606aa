"""A real vLLM engine and a real learner, each in its actor: what is sampled is what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from marl_ray.actors.engine import EngineSpec, SamplingSpec, engine_environment
from marl_ray.actors.generator import Generation, Generator
from marl_ray.config import AlgorithmConfig, ModelConfig
from marl_ray.core.messages import Group
from marl_ray.data.loading import load_tasks
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.learning.learner import Learner
from marl_ray.toy import BASE_PATH
from marl_ray.weights.transport import GeneratorClient, SyncError

SPEC = EngineSpec(str(BASE_PATH), "float32", 512, False, False, 1, 0.5, 64, 128, "store")
MODEL = ModelConfig(name=str(BASE_PATH), temperature=0.9)
SAMPLING = SamplingSpec(num_generations=6, max_new_tokens=48, temperature=0.9, top_p=1.0, top_k=None, seed=11)
PROMPTS = [CodeGeneration(2).first_prompts(task)[1] for task in load_tasks("bundled:toy", "train")[:6]]


def new_learner(folder: str = str(BASE_PATH), **settings: Any) -> Any:
    algorithm = AlgorithmConfig(learning_rate=1e-2, estimator="magrpo", turn_gradient_weights=[1.0])
    for name, value in settings.items():
        setattr(algorithm, name, value)
    return ray.remote(Learner).options(num_cpus=0).remote(0, folder, MODEL, algorithm, "float32", 10, 1)


def start_generator(folder: str) -> Any:
    environment = engine_environment(1, False, True, False)
    return (
        ray.remote(Generator)
        .options(num_cpus=0, max_concurrency=1000, runtime_env={"env_vars": environment})
        .remote(0, 0, replace(SPEC, model=folder), MODEL)
    )


@pytest.fixture(scope="module")
def generator(local_ray: None) -> Iterator[Any]:
    actor = start_generator(str(BASE_PATH))
    assert ray.get(actor.ready.remote(), timeout=300) == [
        "agent 0: prompts go to the model as they are (its tokenizer has no chat template)"
    ]
    with pytest.raises(ray.exceptions.RayTaskError, match="has not received any weights yet"):
        ray.get(actor.generate.remote(PROMPTS[0], SAMPLING), timeout=60)
    yield actor
    ray.kill(actor)


@pytest.fixture(scope="module")
def learner(generator: Any) -> Iterator[Any]:
    actor = new_learner()
    ray.get(actor.connect.remote([generator], 1, "store", 60.0), timeout=120)
    yield actor
    ray.kill(actor)


def sample(generator: Any, prompts: list[str] = PROMPTS) -> list[Generation]:
    calls = [generator.generate.remote(p, replace(SAMPLING, seed=100 * i)) for i, p in enumerate(prompts)]
    return ray.get(calls, timeout=120)


def as_groups(generations: list[Generation]) -> list[Group]:
    """Returns that favour long completions: any rule that tells siblings apart will do."""
    return [
        Group(0, g.prompt_ids, g.completions, tuple(float(len(set(c.token_ids))) for c in g.completions))
        for g in generations
    ]


def test_sampled_tokens_train_and_the_new_weights_are_served(generator: Any, learner: Any) -> None:
    first = ray.get(learner.publish.remote(0), timeout=60)
    before = sample(generator)
    assert {c.weight_version for g in before for c in g.completions} == {0}

    stats = ray.get(learner.update.remote(as_groups(before)), timeout=120)
    assert stats.optimizer_steps == 1
    assert stats.grad_norm > 0
    assert stats.logprob_gap < 1e-4, "engine and learner hold the same weights before the update"

    second = ray.get(learner.publish.remote(1), timeout=60)
    assert second != first
    after = sample(generator)
    assert {c.weight_version for g in after for c in g.completions} == {1}
    assert [g.prompt_ids for g in after] == [g.prompt_ids for g in before]
    # A gap after an update that changed every layer would mean that some layer of the engine kept old weights.
    gap = ray.get(learner.update.remote(as_groups(after)), timeout=120).logprob_gap
    assert gap < 1e-4


def test_weights_that_did_not_change_are_served_under_a_new_version(generator: Any, learner: Any) -> None:
    checksum = ray.get(learner.publish.remote(2), timeout=60)
    before = sample(generator)
    equal = [replace(group, returns=(1.0,) * len(group.returns)) for group in as_groups(before)]
    stats = ray.get(learner.update.remote(equal), timeout=120)
    assert (stats.optimizer_steps, stats.logprob_gap) == (0, None)
    assert ray.get(learner.relabel.remote(3), timeout=60) == checksum
    after = sample(generator)
    assert {c.weight_version for g in after for c in g.completions} == {3}
    assert [[c.token_ids for c in g.completions] for g in after] == [
        [c.token_ids for c in g.completions] for g in before
    ]


def test_completions_keep_the_final_eos_and_nothing_after_it(generator: Any, learner: Any) -> None:
    ray.get(learner.publish.remote(5), timeout=60)
    from marl_ray.models.tokenization import load_tokenizer

    eos = load_tokenizer(str(BASE_PATH), MODEL).eos_token_id
    completions = [c for g in sample(generator) for c in g.completions]
    for c in completions:
        assert len(c.logprobs) == len(c.token_ids) > 0
        assert all(value <= 0 for value in c.logprobs)
        assert (c.token_ids[-1] == eos) == (c.finish_reason == "stop")
        assert eos not in c.token_ids[:-1]
        assert "<|" not in c.text


def test_a_seed_gives_the_same_group_whatever_else_is_in_flight(generator: Any, learner: Any) -> None:
    ray.get(learner.publish.remote(6), timeout=60)
    alone = ray.get(generator.generate.remote(PROMPTS[0], replace(SAMPLING, seed=0)), timeout=60)
    crowded = sample(generator)[0]
    other = ray.get(generator.generate.remote(PROMPTS[0], replace(SAMPLING, seed=12345)), timeout=60)
    assert [c.token_ids for c in alone.completions] == [c.token_ids for c in crowded.completions]
    assert [c.token_ids for c in alone.completions] != [c.token_ids for c in other.completions]
    assert len({c.token_ids for c in alone.completions}) > 1


def test_a_prompt_without_room_gets_no_completions(generator: Any, learner: Any) -> None:
    ray.get(learner.publish.remote(7), timeout=60)
    generation = ray.get(generator.generate.remote("x = 1\n" * 400, SAMPLING), timeout=60)
    assert generation.completions == ()
    assert len(generation.prompt_ids) > SPEC.max_length - SAMPLING.max_new_tokens


def test_a_saved_learner_goes_on_exactly(generator: Any, learner: Any, tmp_path: Path) -> None:
    ray.get(learner.publish.remote(8), timeout=60)
    groups = as_groups(sample(generator))
    ray.get(learner.save.remote(str(tmp_path)), timeout=60)
    restored = new_learner()
    ray.get(restored.load.remote(str(tmp_path)), timeout=120)
    for _ in range(2):
        a, b = ray.get([x.update.remote(groups) for x in (learner, restored)], timeout=120)
        assert a == b
    ray.kill(restored)


def test_a_loss_that_is_not_finite_is_skipped_and_counted(generator: Any, learner: Any) -> None:
    ray.get(learner.publish.remote(9), timeout=60)
    poisoned = [replace(g, returns=(float("inf"), *g.returns[1:])) for g in as_groups(sample(generator))]
    actor = new_learner()
    stats = ray.get(actor.update.remote(poisoned), timeout=120)
    assert (stats.skipped_steps, stats.optimizer_steps) == (1, 0)
    healthy = ray.get(actor.update.remote(as_groups(sample(generator))), timeout=120)
    assert healthy.optimizer_steps == 1
    ray.kill(actor)


class LyingGenerator:
    """Stands in for a generator that got other weights: no real one would acknowledge a wrong checksum."""

    def weight_update(self, stage: str, info: dict | None = None) -> None:
        pass

    def commit_weights(self, version: int) -> tuple[int, int]:
        return version, 42


class StuckGenerator(LyingGenerator):
    """Stands in for a generator that hangs."""

    def weight_update(self, stage: str, info: dict | None = None) -> None:
        import threading

        threading.Event().wait(120)


def test_a_wrong_acknowledgement_is_an_error(local_ray: None) -> None:
    liar = ray.remote(LyingGenerator).options(num_cpus=0).remote()
    actor = new_learner()
    ray.get(actor.connect.remote([liar], 1, "store", 30.0), timeout=60)
    with pytest.raises(SyncError, match="acknowledged version 3 with checksum 42"):
        ray.get(actor.publish.remote(3), timeout=60)
    ray.kill(actor)
    ray.kill(liar)


def test_a_stuck_generator_is_named_when_the_deadline_is_over(local_ray: None) -> None:
    stuck = ray.remote(StuckGenerator).options(num_cpus=0).remote()
    client = GeneratorClient([stuck], 1, deadline_s=0.5)
    client.begin()
    with pytest.raises(SyncError, match=r"generator \[0\] did not start a weight update within 0.5 s"):
        client.start_weight_update()
    ray.kill(stuck)
