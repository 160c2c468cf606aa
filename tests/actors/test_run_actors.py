"""A whole team on a Ray of this machine: started, used, and who is named when a part of it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from marl_ray.actors.handle import Handle
from marl_ray.actors.run_actors import RunActors, start_actors
from marl_ray.cluster.placement_group import reserve
from marl_ray.cluster.placement_plan import make_plan, sandbox_plan
from marl_ray.cluster.ray_private import free_resources
from marl_ray.config import Config, load
from marl_ray.core.batch import Batch, MiniBatch
from marl_ray.core.episode import SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external.transition import Transition
from marl_ray.launch.preflight import check_actors
from marl_ray.trainer.context import RunInputs
from tests.actors.helpers import Log, learn, update_weights

ROOT = Path(__file__).resolve().parents[2]
SAMPLING = SamplingSpec(num_generations=2, max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=None, seed=1)


def config(**overrides: Any) -> Config:
    return load(ROOT / "configs" / "quickstart.yaml", "magrpo", overrides)


def kill(handle: Handle[Any]) -> int:
    assert handle.location is not None
    os.kill(handle.location.process, signal.SIGKILL)
    return handle.location.process


def test_the_driver_loads_neither_torch_nor_vllm() -> None:
    script = "import marl_ray.trainer.loop, marl_ray.launch.run, sys; print({'torch', 'vllm'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.stdout.strip() == "set()", result.stderr


def test_what_the_cluster_has_not_is_said_before_any_actor(local_ray: None) -> None:
    with pytest.raises(UserError, match=r"^the cluster cannot place this run: asked for CPU 1001"):
        asyncio.run(start_actors(config(**{"resources.generator.cpus": 500}), 1))


def test_a_further_replica_has_a_place_of_its_own(local_ray: None) -> None:
    further = ActorId("generator", PolicyId((0,)), 1)

    def free() -> float:
        return sum(node.get("CPU", 0.0) for node in free_resources())

    async def scenario() -> None:
        plan = make_plan(config(**{"resources.generator.cpus": 0.25}), cluster_has_gpus=False)
        places = await reserve(plan, 30)
        before = free()
        await places.add(further, 30)
        assert free() == before - 0.25
        assert (
            places.strategy(further).placement_group
            != places.strategy(ActorId("generator", PolicyId((0,)))).placement_group
        )
        await places.add(ActorId("generator", PolicyId((0,)), 2), 30)
        with pytest.raises(UserError, match=r"^the cluster has no place for agent 0 generator 3: it needs .*CPU"):
            await places.add(ActorId("generator", PolicyId((0,)), 3), 3)
        places.release()

    asyncio.run(scenario())


def test_places_that_were_given_back_can_be_had_again_at_once(local_ray: None) -> None:
    """Ray counts them as free only a moment later."""
    cpus = ray.cluster_resources()["CPU"]
    plan = sandbox_plan(config(**{"resources.sandbox.workers": 1, "resources.sandbox.cpus": cpus}))

    async def scenario() -> None:
        for _ in range(3):
            (await reserve(plan, 30)).free()
        places = await reserve(plan, 30)
        with pytest.raises(UserError, match=r"^the cluster cannot place this run"):
            await reserve(plan, 30)
        places.release()

    asyncio.run(scenario())


def test_a_team_works_together_and_names_what_dies(
    local_ray: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(**{f"resources.{kind}.max_restarts": 0 for kind in ("generator", "learner")})
    environment = ENVIRONMENTS.get(settings.environment).from_config(settings)
    tasks = load_tasks("bundled:toy", "train")[:8]
    inputs = RunInputs(environment, Transition(settings.external, environment), tasks, [])

    async def scenario() -> None:
        team = await start_actors(settings, 10)
        try:
            sandbox, *prompts = capsys.readouterr().err.splitlines()
            assert "sandbox: " in sandbox
            assert [line[:8] for line in prompts] == ["agent 0:", "agent 1:"], "how their prompts reach the models"
            assert team.transport == "Ray's object store"
            await works_together(team)
            await names_what_dies(team)
        finally:
            await team.close()

    async def works_together(team: RunActors) -> None:
        await check_actors(settings, team, inputs, tmp_path)
        with pytest.raises(UserError, match=r"^agent 0 learner does not see .*/elsewhere: output.base_dir should be"):
            await check_actors(settings, team, inputs, tmp_path / "elsewhere")
        for learner, generators in zip(team.learners, team.generators, strict=True):
            await learner.connect(generators, Log())
            await update_weights(learner)
        prompts = environment.first_prompts(tasks[0])
        groups = await asyncio.gather(*(g.generate(p, SAMPLING) for g, p in zip(team.generators, prompts, strict=True)))
        assert [{c.weight_version for c in group.completions} for group in groups] == [{0}, {0}]
        folder = tmp_path / "model"
        await team.learners[1].export(str(folder), inputs.probe_texts(1))
        assert (folder / "model.safetensors").exists()

    async def names_what_dies(team: RunActors) -> None:
        process = kill(team.learners[0].ranks.serving()[0])
        with pytest.raises(
            UserError,
            match=r"^agent 0 learner is lost for good \(resources.learner.max_restarts allows 0 restarts within an "
            rf"hour\): agent 0 learner died \(process {process} on [\d.]+\); --resume goes on$",
        ):
            await learn(team.learners[0], Batch(0, (MiniBatch((), 1),)))
        process = kill(team.generators[1].replicas.serving()[0])
        delivery = await team.learners[1].update_weights(changed=True)
        assert delivery is None or list(delivery.failed) == [ActorId("generator", PolicyId((1,)), 0)]
        with pytest.raises(
            UserError, match=rf"^agent 1 generator 0 is lost for good .*\(process {process} on [\d.]+\)"
        ):
            await team.generators[1].generate("x", SAMPLING)

    before = {p.pid for p in psutil.Process().children(recursive=True)}
    asyncio.run(scenario())
    new = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    _, left = psutil.wait_procs([p for p in new if _is_an_actor(p)], timeout=30)
    assert left == []


def _is_an_actor(process: psutil.Process) -> bool:
    try:
        title = process.cmdline()[0]
    except (psutil.Error, IndexError):
        return False
    return title.startswith(("ray::GenerationActor", "ray::LearnerActor", "ray::SharedLearner", "ray::SandboxWorker"))
