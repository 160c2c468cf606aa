"""Rejected configs, each with a one-line error."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from marl_ray.config import from_tree, load
from marl_ray.config.values import parse_value
from marl_ray.core.errors import UserError
from tests.config.helpers import config_tree

EARLY = {"num_turns": 2, "handoff": "all", "early_termination_threshold": 1}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"algorithm": {"num_turns": 2}}, "unknown setting 'algorithm'"),
        ({"magrpo": {"temperature": 0.5}, "model": {"temperature": 0.6}}, "are the same setting and differ"),
        (
            {"magrpo": {"estimator": "mareinforce", "num_generations": 1, "normalize_advantages": True}},
            "set it to 2 or more",
        ),
        ({"magrpo": {"adam_beta1": 2}}, "below 1"),
        (
            {"magrpo": {"optimizer": "adafactor", "adam_beta1": 0.5}},
            "adam_beta2 are for AdamW, and magrpo.optimizer is ada",
        ),
        (
            {"lora": {"rank": 1024, "in_engine": True}},
            "lora.in_engine: vLLM serves adapters up to rank 512, and lora.rank",
        ),
        (
            {"lora": {"rank": 4, "share_engine": True, "in_engine": False}},
            "lora.share_engine is for engines that have an adapter per policy",
        ),
        (
            {"lora": {"rank": 4, "in_engine": True, "share_engine": True}, "agents": ["a", "b"]},
            "lora.share_engine is for policies with the same base model and the same resources.generator, and no two",
        ),
        (
            {"lora": {"rank": 4, "in_engine": True, "share_engine": True}, "resources": {"colocate": True}},
            "lora.share_engine: with resources.colocate turns an engine sleeps while its learner uses the device, and",
        ),
        (
            {"lora": {"rank": 4, "in_engine": True, "share_engine": True}, "magrpo": {"inflight": "drain"}},
            "lora.share_engine: magrpo.inflight drain would stop the requests of all policies for the update of one",
        ),
        ({"lora": {"export": "adapter"}}, "lora.rank is 0, which disables adapters and all other settings of lora"),
        (
            {"lora": {"rank": 4, "share_base": True}, "agents": ["a", "b"]},
            "and no two policies of this run have both: leave it out",
        ),
        ({"magrpo": {"max_extra_draws": 8}}, "is for dynamic_sampling: set magrpo.dynamic_sampling to true"),
        ({"magrpo": {"dynamic_sampling": True, "estimator": "reinforce_pp"}}, "learns from groups of equal returns"),
        ({"resources": {"generator": {"gpus": 0.5, "tensor_parallel": 2}}}, "make them equal"),
        ({"magrpo": {"turn_gradient_weights": [0]}}, "not all 0"),
        ({"magrpo": {"turn_gradient_weights": [-1]}}, "no weight should be negative"),
        (
            {"magrpo": {"advantage_mode": "median"}},
            "magrpo.estimator: unknown estimator 'median': known: magrpo, grpo, marloo",
        ),
        ({"magrpo": {"discount": 1.5}}, "magrpo.discount should be at most 1"),
        ({"magrpo": {"rubbish": 1}}, "`marl-ray explain magrpo` lists the known settings"),
        ({"reward_processor": {"scale_factor": 0}}, "nothing would be learned"),
        ({"output": {"run_name": "../elsewhere"}}, "the name of a folder below output.base_dir"),
        ({"output": {"run_name": "/tmp/elsewhere"}}, "the name of a folder below output.base_dir"),
        ({"output": {"resume": "auto"}}, "output.resume auto resumes the run of one name: set output.run_name"),
        ({"output": {"run_name": "."}}, "the name of a folder below output.base_dir"),
        (
            {"sandbox": {"require": "bwrp"}},
            "sandbox.require should be one of process, process+landlock, bwrap, or null",
        ),
        ({"magrpo": {"num_turn": 2}}, "did you mean 'magrpo.num_turns'"),
        ({"magrp": {}}, "did you mean 'magrpo'"),
        ({"external": {"mod": "plain"}}, "did you mean 'external.mode'"),
        ({"external": {"mode": "levels"}}, "unknown external.mode 'levels': did you mean level_passed?"),
        ({"magrpo": {"num_turns": 10**24}}, f"magrpo.num_turns should be at most 100, got {10**24}"),
        ({"magrpo": {"num_agents": 10**24}}, f"magrpo.num_agents should be at most 100, got {10**24}"),
        ({"model": {"tokenizer_kwargs": {"x": 1j}}}, "model.tokenizer_kwargs.x should be text, a number, true, false"),
        ({"model": {"tokenizer_kwargs": {"x": [(1, 2)]}}}, "or mapping of these (20 levels at most), got [(1, 2)]"),
        ({"model": {"tokenizer_kwargs": {"x": parse_value("[" * 60 + "1" + "]" * 60)}}}, "(20 levels at most), got [["),
        ({"output": {"run_name": "a/" + "é" * 128}}, "output.run_name has a name of 256 bytes, and the limit is 255"),
        ({"output": {"base_dir": "b" * 256}}, "output.base_dir has a name of 256 bytes"),
        ({"output": {"base_dir": "a\0b"}}, "output.base_dir should be text without a NUL character or half"),
        ({"output": {"run_name": "a\ud800"}}, "half of a surrogate pair, got 'a\\ud800'"),
        ({"dataset": {"name": "a\0.jsonl"}}, "dataset.name should be text without a NUL character"),
        ({"magrpo": {"num_generations": 10**300, "joint_mode": "cross"}}, "one step would have more than 1,000,000"),
        ({"magrpo": {"num_generations": 99, "num_turns": 4, "handoff": "all"}}, "or set handoff to random"),
        (
            {"magrpo": {"handoff": "all", "num_turns": 3, "early_termination_threshold": 0}},
            "magrpo.early_termination_threshold with handoff all and 3 turns would rank a branch that ended early "
            "below its siblings, because its return has fewer turns: set it to null, or num_turns to 2",
        ),
        (
            {"magrpo": {"loss": "clip"}},
            "for several optimizer steps per batch, and there is one, in which all ratios are 1",
        ),
        (
            {"magrpo": {"loss": "gspo", "train_batch_size": 8}},
            "set magrpo.train_batch_size below the 8 groups of a step",
        ),
        ({"magrpo": {"loss": "m2po"}}, "magrpo.loss m2po is for stale tokens"),
        (
            {"magrpo": {"loss": "m2po", "max_staleness": 1, "importance": "mask"}},
            "would apply the ratio of loss m2po a second time",
        ),
        (
            {"magrpo": {"loss": "gspo", "train_batch_size": 2, "loss_aggregation": "token_mean"}},
            "averages over the tokens of a completion itself",
        ),
        (
            {"magrpo": {"clip_high": 0.28}},
            "magrpo.clip_high is for loss clip, gspo, cispo, gmpo, dppo, dppo_kl, not policy_gradient",
        ),
        ({"magrpo": {"loss": "clip", "train_batch_size": 2, "clip_low": 1.5}}, "clip_low should be at most 1"),
        ({"model": {"temperature": 0.005}}, "model.temperature should be at least 0.01, got 0.005"),
        ({"model": {"template_date": "31 Jan"}}, "model.template_date should be a date as text, like '2026-01-31'"),
        ({"model": {"template_date": "2026-13-45"}}, "model.template_date should be a date as text, like '2026-01-31'"),
        ({"magrpo": {"overlong": "mask", "overlong_buffer": 5}}, "magrpo.overlong_buffer is for overlong penalty"),
        (
            {"magrpo": {"overlong": "penalty", "overlong_buffer": 300}},
            "magrpo.overlong_buffer is 300, more than magrpo.max_new_tokens 256: lower it",
        ),
        (
            {"magrpo": {"reference_kl": "k3_in_loss"}},
            "there is no reference policy: set magrpo.reference_kl_coef above",
        ),
        ({"magrpo": {"estimator": "distillation"}}, "and magrpo.reference_kl_coef is 0: set it above 0"),
        (
            {"magrpo": {"estimator": "distillation", "reference_kl_coef": 1.0}},
            "reference_kl k1_in_reward would change them in the learner: set it to k3_in_loss or k2_in_loss",
        ),
        (
            {"magrpo": {"reference_model": "bundled:toy-base"}},
            "magrpo.reference_model is bundled:toy-base, and magrpo.reference_kl_coef is 0: set it above 0",
        ),
        (
            {"output": {"measure_cooperation": "eval"}, "magrpo": {"num_agents": 1}},
            "output.measure_cooperation eval recombines the answers of several agents, and there is one: leave it out",
        ),
        ({"magrpo": {"reference_kl_enabled": 1}}, "magrpo.reference_kl_enabled should be true or false, got 1"),
        (
            {"magrpo": {"loss": "surrogate"}},
            "unknown loss 'surrogate': known: policy_gradient, clip, gspo, m2po, cispo, sapo, gmpo, dppo, dppo_kl",
        ),
        (
            {"magrpo": {"num_turns": "two"}},
            "magrpo.num_turns should be a whole number of at least 1 and at most 100, got 'two'",
        ),
        ({"magrpo": {"num_turns": True}}, "magrpo.num_turns should be a whole number"),
        ({"magrpo": {"learning_rate": "fast"}}, "magrpo.learning_rate should be a number of at least 0, or null"),
        ({"magrpo": {"learning_rate": "nan"}}, "magrpo.learning_rate should be a number"),
        ({"magrpo": {"turn_gradient_weights": [1.0, 2.0]}}, "2 values for 1 turn:"),
        ({"magrpo": {"num_generations": 1}}, "num_generations is 1, but magrpo compares"),
        ({"magrpo": {"estimator": "marloo", "normalize_advantages": True}}, "the same as magrpo"),
        ({"agents": ["a"], "magrpo": {"num_agents": 2}}, "agents names 1 models but magrpo.num_agents is 2"),
        ({"magrpo": {"max_new_tokens": 4096}}, "no room for a prompt"),
        ({"resources": {"learner": {"gpus": 2}}}, "uses one GPU at most"),
        ({"resources": {"generator": {"gpus": 2}}}, "make them equal"),
        (
            {"resources": {"colocate": True}, "magrpo": {"max_staleness": 1}},
            "resources.colocate: engines sleep during updates, so no rollouts can run ahead, and "
            "magrpo.max_staleness is 1: set it to 0, or colocate to false",
        ),
        ({"resources": {"colocate": True, "learner": {"gpus": 1}}}, "so resources.learner.gpus has no effect"),
        ({"resources": {"deadlines": {"sync_s": 0}}}, "resources.deadlines.sync_s should be above 0"),
        ({"model": "x"}, "'model' should be a section"),
        ({"model": {"temperature": 0}}, "model.temperature should be at least 0.01"),
        ({"magrpo": {"eval_temperature": 2.5}}, "magrpo.eval_temperature should be at most 2, got 2.5"),
        ({"magrpo": {"eval_temperature": -1}}, "magrpo.eval_temperature should be at least 0"),
        ({"model": {"temperature": 2.5}}, "model.temperature should be at most 2, got 2.5"),
        ({"dataset": {"name": ""}}, "set dataset.name"),
        ({"magrpo": {"critic": "q"}}, "unknown critic 'q': known: none, iac, maac (or module:Attr of your own)"),
        ({"magrpo": {"critic_target": "mc"}}, "magrpo.critic_target is for critic iac, maac, not none"),
        ({"magrpo": {"critic_learning_rate": 1e-3}}, "magrpo.critic_learning_rate is for critic iac, maac, not none"),
        (
            {"magrpo": {"critic": "iac", "num_turns": 2}},
            "magrpo.critic iac needs the continuation of every completion, and handoff random continues only one of "
            "them: set magrpo.handoff to all",
        ),
        (
            {"magrpo": {"critic": "iac", "dynamic_sampling": True}},
            "magrpo.critic iac learns from groups of equal returns too, and magrpo.dynamic_sampling would skip them",
        ),
        (
            {
                "magrpo": {
                    "critic": "maac",
                    "normalize_advantages": True,
                    "num_generations": 1,
                    "rollout_buffer_size": 1,
                }
            },
            "magrpo.normalize_advantages compares the completions of a batch, and with num_generations 1 and "
            "rollout_buffer_size 1 there is one",
        ),
        (
            {"magrpo": {"estimator": "reinforce_pp", "num_generations": 1, "rollout_buffer_size": 1}},
            "magrpo.estimator reinforce_pp compares the completions of a batch",
        ),
        (
            {"magrpo": {**EARLY, "critic": "iac"}},
            "magrpo.early_termination_threshold with handoff all would let magrpo.critic iac compare groups that ended "
            "early",
        ),
        (
            {
                "magrpo": {
                    "num_turns": 2,
                    "handoff": "all",
                    "early_termination_threshold": 1,
                    "estimator": "reinforce_pp",
                }
            },
            "would let magrpo.estimator reinforce_pp compare groups that ended early",
        ),
        (
            {"magrpo": {"optimizer": "adafactor"}, "lora": {"rank": 4}},
            "magrpo.optimizer adafactor scales steps by the size of the weights, and lora.rank adds weights that start",
        ),
        ({"magrpo": {"optimizer": "adafactor", "critic": "maac"}}, "and magrpo.critic adds weights that start at 0"),
        (
            {"magrpo": {"estimator": "difference", "normalize_advantages": True, "joint_mode": "cross"}},
            "magrpo.normalize_advantages makes difference the same as magrpo if all siblings",
        ),
        ({"magrpo": {"critic": "maac", "estimator": "marloo"}}, "magrpo.estimator marloo compares siblings, and"),
        (
            {"magrpo": {"critic": "iac", "reference_kl_coef": 0.1}},
            "magrpo.critic iac needs the final returns of a batch",
        ),
    ],
)
def test_an_invalid_config_is_rejected_in_one_line(sections: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        from_tree(config_tree(**sections), "magrpo")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("turns", "handoff", "threshold"), [(2, "all", 0.5), (3, "all", None), (3, "best", 0.5), (3, "random", 0.5)]
)
def test_early_termination_is_allowed_if_siblings_end_together(
    turns: int, handoff: str, threshold: float | None
) -> None:
    given = {"num_turns": turns, "handoff": handoff, "early_termination_threshold": threshold}
    rollout = from_tree(config_tree(magrpo=given), "magrpo").training
    assert (rollout.num_turns, rollout.handoff, rollout.early_termination_threshold) == (turns, handoff, threshold)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_critic_works_with_groups_of_one(turns: int) -> None:
    given = {"critic": "iac", "num_turns": turns, "handoff": "all", "num_generations": 1}
    credit = from_tree(config_tree(magrpo=given), "magrpo").training
    assert (credit.critic, credit.critic_target) == ("iac", "td")


def test_the_largest_numbers_of_turns_and_agents_are_accepted() -> None:
    config = from_tree(
        config_tree(magrpo={"num_turns": 100, "num_agents": 100}, output={"run_name": "n" * 255}), "magrpo"
    )
    assert (config.training.num_turns, config.num_agents) == (100, 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{[]:1}", "value {[]:1} cannot be read: line 1, column 2: found unhashable key"),
        ("[2024-13-45]", "value [2024-13-45] cannot be read: line 1, column 2: '2024-13-45' is not a valid timestamp"),
        ("[" * 60 + "x" + "]" * 60, "line 1, column 51: nested more than 50 deep"),
        ("[" * 5000, "line 1, column 51: nested more than 50 deep"),
        ("[&a [*a]]", "line 1, column 6: '*a' is inside itself"),
        ("{a: !!bool x}", "line 1, column 5: 'x' is not a valid bool"),
        ("{a: !!timestamp x}", "line 1, column 5: 'x' is not a valid timestamp"),
    ],
)
def test_invalid_yaml_is_a_one_line_error_with_its_position(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        parse_value(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"c\.yaml is not valid YAML: line 1, column \d+: "):
        load(path, "magrpo")


def test_yaml_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config_tree()) + "agents: [&a {top_p: 0.5}, *a, {<<: *a, name: b}]\n")
    config = load(path, "magrpo")
    assert [(agent.name, agent.top_p) for agent in config.agents] == [("m", 0.5), ("m", 0.5), ("b", 0.5)]
