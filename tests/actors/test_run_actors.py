"""All actors of a run on a local Ray: start, use, and errors that name a lost actor."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

from marl_ray.actors.run_actors import RunActors, start_actors
from marl_ray.cluster.placement_group import reserve
from marl_ray.cluster.placement_plan import sandbox_plan
from marl_ray.config.resource_sections import SandboxResources
from marl_ray.core.batch import Batch, MiniBatch
from marl_ray.core.episode import SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external.transition import Transition
from marl_ray.launch.run_checks import check_actors
from marl_ray.trainer.context import RunInputs
from tests.actors.echo_actor import kill
from tests.actors.helpers import MemoryHistory, learn, update_weights
from tests.factories import ROOT, plan_of, quickstart_config

SAMPLING = SamplingSpec(num_generations=2, max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=None, seed=1)


def test_the_driver_loads_neither_torch_nor_vllm() -> None:
    script = "import marl_ray.trainer.loop, marl_ray.launch.run, sys; print({'torch', 'vllm'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.stdout.strip() == "set()", result.stderr


def test_missing_resources_are_reported_before_any_actor_is_created(local_ray: None) -> None:
    with pytest.raises(UserError, match=r"^the cluster cannot place this run: asked for CPU 1001"):
        asyncio.run(start_actors(quickstart_config(**{"resources.generator.cpus": 500}), 1))


def test_an_added_replica_has_its_own_placement_group(local_ray: None) -> None:
    first, second, third, fourth = (ActorId("generator", PolicyId((0,)), replica) for replica in range(4))

    async def scenario() -> None:
        plan = plan_of(quickstart_config(**{"resources.generator.cpus": 0.25}), cluster_has_gpus=False)
        placement = await reserve(plan, 30)
        try:
            await placement.add(second, 30)
            group = placement.strategy(second).placement_group
            assert group != placement.strategy(first).placement_group
            assert ray.util.placement_group_table(group)["bundles"] == {0: {"CPU": 0.25}}
            await placement.add(third, 30)
            with pytest.raises(UserError, match=r"^the cluster has no place for agent 0 generator 3: it needs .*CPU"):
                await placement.add(fourth, 3)
        finally:
            placement.release()

    asyncio.run(scenario())


def test_released_resources_can_be_reserved_again_at_once(local_ray: None) -> None:
    # Ray's own count of free resources lags behind.
    cpus = ray.cluster_resources()["CPU"]
    plan = sandbox_plan(SandboxResources(workers=1, cpus=cpus))

    async def scenario() -> None:
        for _ in range(3):
            (await reserve(plan, 30)).release()
        placement = await reserve(plan, 30)
        with pytest.raises(UserError, match=r"^the cluster cannot place this run"):
            await reserve(plan, 30)
        placement.release()

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_actors_of_a_run_work_together_and_a_lost_actor_is_named(
    local_ray: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = quickstart_config(**{f"resources.{kind}.max_restarts": 0 for kind in ("generator", "learner")})
    environment = ENVIRONMENTS.get(settings.environment).from_config(settings)
    tasks = load_tasks("bundled:toy", "train")[:8]
    inputs = RunInputs(environment, Transition(settings.external, environment), tasks, [])

    async def scenario() -> None:
        actors = await start_actors(settings, 10)
        try:
            sandbox, *prompts = capsys.readouterr().err.splitlines()
            assert "sandbox: " in sandbox
            assert [line[:8] for line in prompts] == ["agent 0:", "agent 1:"], "the prompt formats"
            assert actors.transport == "Ray's object store"
            await work_together(actors)
            await lose_actors(actors)
        finally:
            await actors.close()

    async def work_together(actors: RunActors) -> None:
        await check_actors(settings, actors, inputs, tmp_path)
        with pytest.raises(UserError, match=r"^agent 0 learner does not see .*/elsewhere: output.base_dir should be"):
            await check_actors(settings, actors, inputs, tmp_path / "elsewhere")
        for learner, generators in zip(actors.learners, actors.generators, strict=True):
            await learner.connect(generators, MemoryHistory())
            await update_weights(learner)
        prompts = environment.first_prompts(tasks[0])
        groups = await asyncio.gather(
            *(g.generate(p, SAMPLING) for g, p in zip(actors.generators, prompts, strict=True))
        )
        assert [{c.weight_version for c in group.completions} for group in groups] == [{0}, {0}]
        folder = tmp_path / "model"
        await actors.learners[1].export(str(folder), inputs.probe_texts(1))
        assert (folder / "model.safetensors").exists()

    async def lose_actors(actors: RunActors) -> None:
        process = kill(actors.learners[0].ranks.serving()[0])
        with pytest.raises(
            UserError,
            match=r"^agent 0 learner is lost for good \(resources.learner.max_restarts allows 0 restarts within an "
            rf"hour\): agent 0 learner died \(process {process} on [\d.]+\); --resume continues the run$",
        ):
            await learn(actors.learners[0], Batch(0, (MiniBatch((), 1),)))
        process = kill(actors.generators[1].replicas.serving()[0])
        result = await actors.learners[1].update_weights(changed=True)
        assert result is None or list(result.failed) == [ActorId("generator", PolicyId((1,)), 0)]
        with pytest.raises(
            UserError, match=rf"^agent 1 generator 0 is lost for good .*\(process {process} on [\d.]+\)"
        ):
            await actors.generators[1].generate("x", SAMPLING)

    before = {p.pid for p in psutil.Process().children(recursive=True)}
    asyncio.run(scenario())
    new = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    _, remaining = psutil.wait_procs([p for p in new if _is_an_actor(p)], timeout=30)
    assert remaining == []


def _is_an_actor(process: psutil.Process) -> bool:
    try:
        title = process.cmdline()[0]
    except (psutil.Error, IndexError):
        return False
    return title.startswith(("ray::GenerationActor", "ray::LearnerActor", "ray::SharedLearner", "ray::SandboxWorker"))
