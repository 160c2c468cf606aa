"""A real vLLM engine and a real learner, each in its actor: the learner trains exactly the sampled tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Actor, ActorFailed
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.run_actors import RunActors
from marl_ray.actors.supervisor import ActorSpec, skip_initialization
from marl_ray.actors.weight_update_client import AgreementProbe, WeightUpdateClient
from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external.transition import Transition
from marl_ray.launch.run_checks import check_logprob_agreement
from marl_ray.learning.policy_model import load_policy
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from marl_ray.trainer.context import RunInputs
from marl_ray.weights.deltas import WeightUpdate, complete_delta
from marl_ray.weights.receiver import Acknowledgement
from marl_ray.weights.sender import CastSource, WeightSender
from tests.actors.helpers import (
    DEADLINES,
    MODEL,
    PROMPTS,
    SAMPLING,
    SPEC,
    MemoryHistory,
    as_batch,
    generators,
    learn,
    learner,
    run,
    sample,
    update_weights,
)
from tests.factories import make_config


@pytest.fixture(scope="module")
def engine(local_ray: None) -> Iterator[GeneratorGroup]:
    group = generators()
    assert run(group.start()) == ["agent 0: prompts go to the model as they are (its tokenizer has no chat template)"]
    with pytest.raises(ActorFailed, match="agent 0 generator 0 has not received any weights yet"):
        run(group.generate(PROMPTS[0], SAMPLING))
    yield group
    run(group.close())


@pytest.fixture(scope="module")
def trainer(engine: GeneratorGroup) -> Iterator[LearnerGroup]:
    group = learner()
    assert run(group.start()) == []
    run(group.connect(engine, MemoryHistory()))
    yield group
    run(group.close())


def test_min_new_tokens_excludes_an_early_end_from_the_sampled_distribution(
    engine: GeneratorGroup, trainer: LearnerGroup
) -> None:
    run(update_weights(trainer))
    eos = load_tokenizer(str(BASE_PATH), MODEL).eos_token_id
    free = run(sample(engine, PROMPTS))
    assert min(len(c.token_ids) for g in free for c in g.completions) < 40
    spec = replace(SAMPLING, min_new_tokens=40, stop=("def",))
    longer = [run(engine.generate(prompt, spec)) for prompt in PROMPTS]
    for c in (c for g in longer for c in g.completions):
        assert len(c.token_ids) >= 40
        assert eos not in c.token_ids[:40]
    assert run(trainer.logprob_gap(as_batch(free).mini_batches[0].groups)) < 1e-4
    assert run(trainer.logprob_gap(as_batch(longer).mini_batches[0].groups)) > 1e-3, "the engine's are processed"


def test_sampled_tokens_are_trained_and_the_new_weights_are_served(
    engine: GeneratorGroup, trainer: LearnerGroup
) -> None:
    first = run(update_weights(trainer))
    before = run(sample(engine, PROMPTS))
    assert {c.weight_version for g in before for c in g.completions} == {0}

    stats = run(learn(trainer, as_batch(before)))
    assert stats.optimizer_steps == 1
    assert stats.grad_norm > 0
    assert stats.logprob_gap is not None
    assert stats.logprob_gap < 1e-4, "engine and learner hold the same weights before the update"

    second = run(update_weights(trainer))
    assert second != first
    after = run(sample(engine, PROMPTS))
    assert {c.weight_version for g in after for c in g.completions} == {1}
    assert [g.prompt_ids for g in after] == [g.prompt_ids for g in before]
    # The update changed every layer, so a gap would mean that a layer of the engine kept its old weights.
    gap = run(learn(trainer, as_batch(after))).logprob_gap
    assert gap is not None
    assert gap < 1e-4


def test_engine_and_learner_are_compared_before_training(engine: GeneratorGroup, trainer: LearnerGroup) -> None:
    model = {"name": "m", "temperature": SAMPLING.temperature, "top_p": 0.5}
    config = make_config("grpo", {"model": model})
    unused: Any = None
    actors = RunActors([engine], [trainer], sandbox=unused, placement=unused)
    environment = ENVIRONMENTS.get("code_generation").from_config(config)
    inputs = RunInputs(environment, Transition(config.external, environment), load_tasks("bundled:toy", "train"), [])

    def compare(given: Config) -> None:
        run(check_logprob_agreement(given, actors, inputs))

    run(update_weights(trainer))
    compare(config)
    compare(replace(config, training=replace(config.training, max_logprob_gap=1e-3)))
    hot = replace(config, agents=(replace(config.agents[0], temperature=2.0),))
    with pytest.raises(UserError, match=r"^agent 0: generator and learner differ by .* grpo\.max_logprob_gap 0\.1: "):
        compare(hot)
    compare(replace(hot, training=replace(hot.training, max_logprob_gap=None)))
    run(learn(trainer, as_batch(run(sample(engine, PROMPTS)))))
    with pytest.raises(UserError, match="Likely: other weights"):
        compare(config)


def test_a_generator_that_starts_during_a_run_is_compared_with_its_learner(
    engine: GeneratorGroup, trainer: LearnerGroup
) -> None:
    def restart(probe: AgreementProbe, incarnation: int) -> None:
        run(trainer.connect(engine, MemoryHistory(), probe))
        run(trainer.initialize_generator(replace(engine.replicas.serving()[0], incarnation=incarnation)))

    run(update_weights(trainer))
    expected = run(sample(engine, PROMPTS))
    probe = AgreementProbe(PROMPTS[0], SAMPLING, bound=1e-3)
    restart(probe, 2)
    assert run(sample(engine, PROMPTS)) == expected, "later requests do not use the keys and values of the probe"
    hot = replace(probe, sampling=replace(SAMPLING, temperature=2.0))
    restart(hot, 2)  # it is compared once
    with pytest.raises(UserError, match=r"^agent 0 generator 0 started, but differs from its learner by .*gpu\.md"):
        restart(hot, 3)
    run(trainer.connect(engine, MemoryHistory()))


def test_unchanged_weights_are_served_under_a_new_version(engine: GeneratorGroup, trainer: LearnerGroup) -> None:
    checksum, version = run(update_weights(trainer)), trainer.version
    before = run(sample(engine, PROMPTS))
    stats = run(learn(trainer, as_batch(before, [1.0] * SAMPLING.num_generations)))
    assert (stats.optimizer_steps, stats.logprob_gap) == (0, None)
    assert run(update_weights(trainer, changed=False)) == checksum
    after = run(sample(engine, PROMPTS))
    assert {c.weight_version for g in after for c in g.completions} == {version + 1}
    assert [[c.token_ids for c in g.completions] for g in after] == [
        [c.token_ids for c in g.completions] for g in before
    ]


def test_completions_keep_the_final_eos_and_nothing_after_it(engine: GeneratorGroup, trainer: LearnerGroup) -> None:
    run(update_weights(trainer))
    eos = load_tokenizer(str(BASE_PATH), MODEL).eos_token_id
    for c in [c for g in run(sample(engine, PROMPTS)) for c in g.completions]:
        assert len(c.logprobs) == len(c.token_ids) > 0
        assert all(value <= 0 for value in c.logprobs)
        assert (c.token_ids[-1] == eos) == (c.finish_reason == "stop")
        assert eos not in c.token_ids[:-1]
        assert "<|" not in c.text


def test_a_stop_text_ends_a_completion_and_its_tokens_are_trained(
    engine: GeneratorGroup, trainer: LearnerGroup
) -> None:
    run(update_weights(trainer))
    tokenizer = load_tokenizer(str(BASE_PATH), MODEL)
    free = run(engine.generate(PROMPTS[0], SAMPLING)).completions
    word = next(c.text for c in free if len(c.text) > 12)[6:10]
    generation = run(engine.generate(PROMPTS[0], replace(SAMPLING, stop=(word,))))
    stopped = [(before, c) for before, c in zip(free, generation.completions, strict=True) if word in before.text]
    assert stopped
    for before, c in stopped:
        assert c.finish_reason == "stop"
        assert c.text == before.text[: before.text.index(word)]
        assert c.token_ids == before.token_ids[: len(c.token_ids)], "the sampled tokens, up to the end of the stop text"
        assert word in tokenizer.decode(c.token_ids)
        assert word not in tokenizer.decode(c.token_ids[:-1])
        assert len(c.logprobs) == len(c.token_ids)
        assert c.logprobs == pytest.approx(before.logprobs[: len(c.logprobs)], abs=1e-4)
    stats = run(learn(trainer, as_batch([generation])))
    assert stats.logprob_gap is not None
    assert stats.logprob_gap < 1e-4


def test_a_seed_gives_the_same_group_whatever_other_requests_are_in_flight(
    engine: GeneratorGroup, trainer: LearnerGroup
) -> None:
    run(update_weights(trainer))
    alone = run(engine.generate(PROMPTS[0], replace(SAMPLING, seed=0)))
    batched = run(sample(engine, PROMPTS))[0]
    other = run(engine.generate(PROMPTS[0], replace(SAMPLING, seed=12345)))
    assert [c.token_ids for c in alone.completions] == [c.token_ids for c in batched.completions]
    assert [c.token_ids for c in alone.completions] != [c.token_ids for c in other.completions]
    assert len({c.token_ids for c in alone.completions}) > 1


def test_a_prompt_that_leaves_no_room_gets_no_completions(engine: GeneratorGroup, trainer: LearnerGroup) -> None:
    run(update_weights(trainer))
    prompt = "x = 1\n" * 400
    generation = run(engine.generate(prompt, SAMPLING))
    assert generation.completions == ()
    assert len(generation.prompt_ids) > SPEC.max_length - SAMPLING.max_new_tokens
    assert run(engine.prompt_lengths([prompt, "x"])) == [len(generation.prompt_ids), 1]


def test_fingerprints_show_whether_the_tokenizers_agree(engine: GeneratorGroup, trainer: LearnerGroup) -> None:
    assert run(engine.fingerprints(PROMPTS)) == [run(trainer.fingerprint(PROMPTS))]
    assert run(engine.fingerprints(PROMPTS[:1])) != [run(trainer.fingerprint(PROMPTS))]


def test_a_saved_learner_continues_exactly(engine: GeneratorGroup, trainer: LearnerGroup, tmp_path: Path) -> None:
    run(update_weights(trainer))
    batch = as_batch(run(sample(engine, PROMPTS)))
    run(trainer.save(str(tmp_path)))
    assert run(trainer.sees_path(str(tmp_path)))
    assert not run(trainer.sees_path(str(tmp_path / "elsewhere")))
    restored = learner()
    run(restored.start())
    run(restored.load(str(tmp_path), trainer.version))
    for _ in range(2):
        assert run(learn(trainer, batch)) == run(learn(restored, batch))
    run(restored.close())


def test_a_non_finite_loss_is_skipped_and_counted(engine: GeneratorGroup, trainer: LearnerGroup) -> None:
    run(update_weights(trainer))
    poisoned = as_batch(run(sample(engine, PROMPTS)), [float("inf"), *range(SAMPLING.num_generations - 1)])
    group = learner()
    run(group.start())
    stats = run(learn(group, poisoned))
    assert (stats.skipped_steps, stats.optimizer_steps) == (1, 0)
    healthy = run(learn(group, as_batch(run(sample(engine, PROMPTS)))))
    assert healthy.optimizer_steps == 1
    run(group.close())


class StageByStage(WeightUpdateClient):
    """A client that drives an update as vLLM's engines for NCCL and CUDA IPC do."""

    def update_weights(self, version: int, weights: Any) -> list[Acknowledgement]:
        self.run_stage("start_weight_update")
        self.run_stage("start_weight_update")  # as after a sender that died during its update
        self.run_stage("update_weights", {"weights": weights})
        self.run_stage("finish_weight_update")
        return super().update_weights(version, None)


def test_an_update_stage_by_stage_equals_the_update_in_one_command(engine: GeneratorGroup) -> None:
    """Send a third update after one that ended after seven tensors, as after the loss of a sender."""
    policy = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    part = WeightUpdate(
        [complete_delta(n, torch.zeros_like(t)) for n, t in islice(CastSource(policy, torch.float32), 7)]
    )
    served, checksums = [], []
    for version, client in enumerate((WeightUpdateClient, StageByStage, StageByStage), start=20):
        receivers = client(engine.replicas.serving(), 1, 1, 60.0)
        receivers.run_stage("init_weight_transfer_engine", {})
        if version == 22:
            receivers.run_stage("start_weight_update")
            receivers.run_stage("update_weights", {"weights": part})
        checksums.append(
            WeightSender(CastSource(policy, torch.float32), "store").update_weights(version, receivers).checksum
        )
        served.append(run(sample(engine, PROMPTS[:2])))
        assert {c.weight_version for g in served[-1] for c in g.completions} == {version}
    assert len(set(checksums)) == 1
    tokens = [[c.token_ids for g in groups for c in g.completions] for groups in served]
    assert tokens[0] == tokens[1] == tokens[2]


def test_an_engine_that_receives_only_changes_serves_the_same_weights(engine: GeneratorGroup) -> None:
    policy = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    sender = WeightSender(CastSource(policy, torch.float32), "store", sparse=True)
    results = []
    for version in (30, 31):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter[:2] *= 1.5
        results.append(sender.update_weights(version, WeightUpdateClient(engine.replicas.serving(), 1, 1, 60.0)))
    first, second = results
    assert first.changed is None
    assert second.changed is not None
    assert 0 < second.changed < 0.1
    assert second.sent_bytes < first.sent_bytes / 5
    served = run(sample(engine, PROMPTS[:2]))
    assert {c.weight_version for g in served for c in g.completions} == {31}

    full_sender = WeightSender(CastSource(policy, torch.float32), "store", sparse=False)
    everything = full_sender.update_weights(32, WeightUpdateClient(engine.replicas.serving(), 1, 1, 60.0))
    assert (everything.checksum, everything.sent_bytes) == (second.checksum, first.sent_bytes)
    again = run(sample(engine, PROMPTS[:2]))
    assert [(c.token_ids, c.logprobs) for g in again for c in g.completions] == [
        (c.token_ids, c.logprobs) for g in served for c in g.completions
    ]


def test_an_error_in_an_actor_names_the_actor_and_keeps_the_traceback(
    engine: GeneratorGroup, trainer: LearnerGroup
) -> None:
    with pytest.raises(
        ActorFailed, match=r"agent 0 learner \(process \d+ on [\d.]+\) failed in export: \w+Error: "
    ) as raised:
        run(trainer.export("/proc/there/is/no/such/folder", ["x"]))
    assert "save_pretrained" in str(raised.value.__cause__), "the remote traceback"


class LyingGenerator(Actor):
    """A stand-in for a generator that received other weights; no real one would acknowledge a wrong checksum."""

    def __init__(self, id: ActorId) -> None:
        self.id = id

    def start(self) -> list[str]:
        return []

    def heartbeat(self) -> None:
        pass

    def fence(self, incarnation: int) -> None:
        pass

    def update_weights(self, incarnation: int, version: int, weights: Any) -> Acknowledgement:
        return Acknowledgement(self.id, version, 42)


class StuckGenerator(LyingGenerator):
    """A stand-in for a generator that hangs."""

    def update_weights(self, incarnation: int, version: int, weights: Any) -> Acknowledgement:
        import threading

        threading.Event().wait(120)
        raise AssertionError


def stand_ins(actor_class: type[Any]) -> GeneratorGroup:
    ids = [ActorId("generator", PolicyId((0,)), replica) for replica in range(2)]
    return GeneratorGroup(
        [ActorSpec(id, actor_class, (id,), {"num_cpus": 0}) for id in ids], 1, DEADLINES, skip_initialization
    )


@pytest.mark.slow
def test_generators_that_do_not_acknowledge_the_weights_are_named(local_ray: None) -> None:
    async def scenario() -> None:
        liars, stuck = stand_ins(LyingGenerator), stand_ins(StuckGenerator)
        sender = learner(deadlines=replace(DEADLINES, sync_s=2))
        try:
            await asyncio.gather(liars.start(), stuck.start(), sender.start())
            await sender.connect(liars, MemoryHistory())
            lie = "WeightSyncError: agent 0 generator 0 acknowledged version 0 with checksum 42"
            with pytest.raises(ActorFailed, match=lie):
                await sender.update_weights(changed=True)
            await sender.connect(stuck, MemoryHistory())
            result = await sender.update_weights(changed=True)
            assert result is not None
            assert {str(id): reason for id, reason in result.failed.items()} == {
                f"agent 0 generator {i}": f"timed out after 2 s waiting for agent 0 generator {i} to update weights "
                "(resources.deadlines.sync_s)"
                for i in range(2)
            }
            assert stuck.replicas.serving() == []
        finally:
            await asyncio.gather(liars.close(), stuck.close(), sender.close())

    run(scenario())
