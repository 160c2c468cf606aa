"""Resolution of --model, and requests that are rejected before any actor starts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.config import Config, from_tree, load, to_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.evaluation.evaluate import evaluation_config, plan_evaluation
from marl_ray.evaluation.model_sources import (
    evaluated_models,
    find_model_sources,
    policy_config,
    run_folder_of,
    single_agent,
)
from marl_ray.evaluation.requests import EvaluationRequest
from marl_ray.storage.run_folder import RunFolder

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


@pytest.fixture
def config() -> Config:
    return load(QUICKSTART, "magrpo")


@pytest.fixture
def run(tmp_path: Path, config: Config) -> RunFolder:
    """Return the folder of a run with two checkpoints and no trained models."""
    folder = RunFolder(tmp_path / "one")
    folder.make()
    folder.write_config(to_yaml(config), 0)
    for step in (2, 4):
        for agent in (0, 1):
            (folder.checkpoints.begin(step, PolicyId((agent,))) / "config.json").write_text("{}")
        folder.checkpoints.commit(TrainerState(step, 8 * step, 2 * step), keep=2)
    return folder


def test_a_run_stands_for_its_trained_models_or_its_newest_checkpoint(run: RunFolder, config: Config) -> None:
    base, newest = find_model_sources(["base", str(run)], config.agents)
    assert base.weights == ("bundled:toy-base", "bundled:toy-base")
    checkpoints = run.checkpoints.all()
    assert newest.label == "one"
    assert newest.weights == tuple(str(checkpoints[1] / f"agent_{agent}") for agent in (0, 1))
    (older,) = find_model_sources([str(checkpoints[0])], config.agents)
    assert (older.label, older.weights[0]) == ("one/step_000002", str(checkpoints[0] / "agent_0"))
    assert run_folder_of(checkpoints[0]) == run_folder_of(run.path) == run.path
    for agent in (0, 1):
        run.model(PolicyId((agent,))).mkdir(parents=True)
    (trained,) = find_model_sources([str(run)], config.agents)
    assert trained.weights == (str(run.model(PolicyId((0,)))), str(run.model(PolicyId((1,)))))


def test_a_model_is_evaluated_as_every_agent(run: RunFolder, config: Config) -> None:
    agent = run.checkpoints.all()[1] / "agent_1"
    bundled, folder = find_model_sources(["bundled:toy-hard-base", str(agent)], config.agents)
    assert (bundled.label, bundled.weights) == ("bundled:toy-hard-base", ("bundled:toy-hard-base",) * 2)
    assert (folder.label, folder.weights) == ("agent_1", (str(agent),) * 2)
    with pytest.raises(UserError, match="bundled:toy-nothing does not exist"):
        plan_evaluation(config, request(models=["bundled:toy-nothing"]))


def test_the_newest_checkpoint_replaces_models_of_fewer_steps(run: RunFolder, config: Config) -> None:
    for steps, folder in ((4, run.models), (3, run.checkpoints.all()[1])):
        for agent in (0, 1):
            run.model(PolicyId((agent,))).mkdir(parents=True, exist_ok=True)
            (run.model(PolicyId((agent,))) / "trained.json").write_text(f'{{"steps": {steps}}}')
        (found,) = find_model_sources([str(run)], config.agents)
        assert found.weights[1] == str(folder / "agent_1")


def test_a_shared_policy_provides_the_weights_of_each_of_its_agents(tmp_path: Path, config: Config) -> None:
    # This does not depend on whether the evaluation's config shares a policy.
    shared = load(QUICKSTART, "magrpo", {"magrpo.policy": 0})
    folder = RunFolder(tmp_path / "shared")
    folder.make()
    folder.write_config(to_yaml(shared), 0)
    folder.model(PolicyId((0, 1))).mkdir(parents=True)
    for own in (config, shared):
        base, trained = find_model_sources(["base", str(folder)], own.agents)
        assert trained.weights == (str(folder.models / "policy_0"),) * 2
        apart = evaluated_models([base, trained], own, swap=True)[1].config
        assert [agent.name for agent in apart.agents] == ["bundled:toy-base", trained.weights[1]]
        assert apart.policies == (PolicyId((0,)), PolicyId((1,))), "policies are not shared in an evaluation"


def test_adapters_are_recognised_and_must_be_complete(run: RunFolder, config: Config) -> None:
    adapter = run.checkpoints.all()[1] / "agent_0"
    (adapter / "adapter_model.safetensors").touch()
    (adapter / "tokenizer.json").write_text("{}")
    (newest,) = find_model_sources([str(run)], config.agents)
    assert newest.adapters == {str(adapter): "bundled:toy-base"}
    with pytest.raises(UserError, match=r"agent_0 cannot be loaded: adapter_model.safetensors is cut off"):
        plan_evaluation(config, request(models=[str(run)]))


def test_invalid_models_are_rejected(run: RunFolder, config: Config, tmp_path: Path) -> None:
    def refusal(*names: str) -> str:
        with pytest.raises(UserError) as caught:
            find_model_sources(names, config.agents)
        return str(caught.value)

    assert "--model base is given twice" in refusal("base", "base")
    assert "neither base, bundled:NAME nor the folder of a model, of a run" in refusal(str(tmp_path / "two"))
    (run.checkpoints.all()[1] / "agent_1" / "config.json").unlink()
    assert "agent_1/config.json is missing" in refusal(str(run))
    run.model(PolicyId((0,))).mkdir(parents=True)
    assert "holds agent_0, but its run has agent_0, agent_1" in refusal(str(run))
    empty = RunFolder(tmp_path / "empty")
    empty.make()
    empty.write_config(to_yaml(config), 0)
    assert "has neither trained models nor a checkpoint yet" in refusal(str(empty))


def test_runs_with_the_same_name_are_labelled_by_their_paths(run: RunFolder, config: Config, tmp_path: Path) -> None:
    other = tmp_path / "seed2" / "one"
    shutil.copytree(run.path, other)
    base, one, two = find_model_sources(["base", str(run), str(other)], config.agents)
    assert (base.label, one.label, two.label) == ("base", str(run), str(other))
    assert len(evaluated_models([base, one, two], config, swap=True)) == 9
    with pytest.raises(UserError, match=f"--model {other}/ is given twice: remove one"):
        find_model_sources([str(other), f"{other}/"], config.agents)


def test_swapping_assigns_every_model_to_every_agent(run: RunFolder, config: Config) -> None:
    sources = find_model_sources(["base", str(run)], config.agents)
    places = evaluated_models(sources, config, swap=True)
    assert [place.label for place in places] == ["base+base", "base+one", "one+base", "one+one"]
    assert [agent.name for agent in places[2].config.agents] == [sources[1].weights[0], "bundled:toy-base"]
    assert places[1].sources == ("base", "one")
    with pytest.raises(UserError, match="--swap combines models across agents"):
        evaluated_models(sources[:1], config, swap=True)
    single = single_agent(places[1])
    assert [agent.name for agent in single.config.agents] == [sources[1].weights[1]]


def test_a_trained_model_keeps_the_prompt_format_of_its_base_model(run: RunFolder) -> None:
    tree = {"agents": ["some/model-base", "some/model"], "dataset": {"name": "bundled:toy"}, "magrpo": {}}
    config = from_tree(tree, "magrpo")
    (trained,) = evaluated_models(find_model_sources([str(run)], config.agents), config, swap=False)
    assert [policy_config(trained, agent).model.use_chat_template for agent in (0, 1)] == [False, None]
    forced = replace(config, model=replace(config.model, use_chat_template=True))
    (model,) = evaluated_models(find_model_sources([str(run)], forced.agents), forced, swap=False)
    assert policy_config(model, 0).model.use_chat_template is True


def request(**changes: object) -> EvaluationRequest:
    default = EvaluationRequest(models=["base"], samples=5, ks=[1, 5], folder=Path("out"))
    return replace(default, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 4}, "pass@5 needs as many samples, there are 4: raise --samples"),
        ({"protocol": "paralel"}, "unknown protocol 'paralel': there are parallel, single, sequential, discussion"),
        ({"split": "test"}, "has no split 'test'"),
        ({"swap": True}, "give --model at least twice"),
    ],
)
def test_invalid_requests_are_rejected(config: Config, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_evaluation(config, request(**changes))
    assert message in str(caught.value)


def test_greedy_sampling_allows_one_sample(config: Config) -> None:
    greedy = replace(config, training=replace(config.training, eval_temperature=0.0))
    with pytest.raises(UserError, match="all samples of a task are equal: set --samples 1"):
        plan_evaluation(greedy, request())
    with pytest.raises(UserError, match=r"all 4 samples of magrpo.eval_num_generations would be equal: set it to 1"):
        load(QUICKSTART, "magrpo", {"magrpo.eval_temperature": 0})
    assert load(QUICKSTART, "magrpo", {"magrpo.eval_temperature": 0, "magrpo.eval_num_generations": 1})


def test_the_command_samples_one_joint_action_per_turn(run: RunFolder) -> None:
    for config, model in ((QUICKSTART, "base"), (None, str(run.path))):
        evaluated = evaluation_config([model], config, overrides={"magrpo.eval_temperature": 0})
        assert evaluated.training.eval_num_generations == 1


def test_the_default_tasks_are_those_of_training_evaluations(config: Config) -> None:
    few = replace(config, training=replace(config.training, eval_num_samples=3))
    assert len(plan_evaluation(few, request()).tasks) == 3
    assert len(plan_evaluation(few, request(split="eval[:5]")).tasks) == 5
    single = plan_evaluation(few, request(protocol="single"))
    assert single.models[0].config.num_agents == 1


@pytest.mark.plugins("solver_tester")
@pytest.mark.parametrize("protocol", ["sequential", "discussion"])
def test_reordering_protocols_are_rejected_for_environments_with_an_order(protocol: str) -> None:
    ordered = load(QUICKSTART.with_name("toy_solver_tester.yaml"), "magrpo")
    with pytest.raises(UserError, match="environment solver_tester has an order of its own: use parallel"):
        plan_evaluation(ordered, request(protocol=protocol))
    assert plan_evaluation(ordered, request(protocol="single")).models[0].config.num_agents == 1


@pytest.mark.plugins("gateway")
def test_models_of_programs_are_swapped_and_not_recombined() -> None:
    relay = load(QUICKSTART.with_name("toy_relay.yaml"), "magrpo")
    with pytest.raises(UserError, match=r"programs play .* environment gateway: leave it out, or set --swap"):
        plan_evaluation(relay, request(cooperation=True))
    models = ["bundled:toy-kuhn-base", "bundled:toy-hanabi-base"]
    plan = plan_evaluation(relay, request(models=models, swap=True))
    assert len(plan.models) == 4


def test_an_evaluation_needs_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--model", "base"]) == 1
    assert "no config: give --config FILE, or the --model of a run" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "--model", "base", "--k", "1,x"])
    assert "--k: 'x' is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.plugins("frozen_partners")
def test_the_team_of_a_run_with_frozen_partners_is_evaluated_without_them(tmp_path: Path, config: Config) -> None:
    partners = {"environment": "code_generation", "stand_in": [1]}
    agents = ["bundled:toy-base", "bundled:toy-base", {"name": "old", "learning_rate": 0}]
    tree = {
        "environment": "frozen_partners",
        "partners": partners,
        "agents": agents,
        "dataset": {"name": "bundled:toy"},
    }
    run = RunFolder(tmp_path / "three")
    run.make()
    run.write_config(to_yaml(from_tree({**tree, "magrpo": {}}, "magrpo")), 0)
    for agent in range(3):
        run.model(PolicyId((agent,))).mkdir(parents=True)
    (source,) = find_model_sources([str(run)], config.agents)
    assert source.weights == tuple(str(run.model(PolicyId((agent,)))) for agent in (0, 1))
    (model,) = evaluated_models([source], config, swap=False)
    assert model.config.num_agents == 2
