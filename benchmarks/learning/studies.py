"""The studies of the toy sets, of letter grids and of MBPP with the metrics of their tables, and all studies."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.learning import expert
from benchmarks.learning.math_studies import TOY_MATH
from benchmarks.learning.measures import agreement
from benchmarks.learning.study import CONFIGS, FROZEN, JOINT, Arm, Study
from marl_ray.plugins.grid import GRID_BASE_PATH, GRIDS_PATH
from marl_ray.toy import HARD_BASE_PATH, HARD_TASKS_PATH, REVISING_BASE_PATH

FEWER = ("single_tokens", "single_one_turn")
"""Arms with fewer completions per step, since their agent writes both functions in longer completions."""
_TREE = {"magrpo.handoff": "all", "magrpo.num_generations": 4, "magrpo.rollout_buffer_size": 6}
_IAC = {"magrpo.critic": "iac", "magrpo.critic_learning_rate": 1e-2, **_TREE}
_ONE_TURN = {"magrpo.num_turns": 1, "magrpo.rollout_buffer_size": 16}
_FEEDBACK = {
    "level_passed": Arm("told level_passed", {"external.mode": "level_passed"}),
    "passed": Arm("told passed", {"external.mode": "passed"}),
    "plain": Arm("told nothing", {"external.mode": "plain"}),
    "expert_edits": Arm("told a solution", {"external.mode": "expert_edits", "external.expert_model": expert.MODEL}),
}
_HANDOFF = {
    "best": Arm("handoff best", {"magrpo.handoff": "best"}),
    "all": Arm("handoff all, G = 4, 6 tasks", _TREE),
}
_STOP = {"stop_visible": Arm("both agents, stop: visible", {"external.stop": "visible"})}
TOY_HARD = Study(
    name="toy-hard",
    config=CONFIGS / "toy_hard.yaml",
    common={"magrpo.num_train_epochs": 100, "magrpo.max_steps": 60, "output.episodes_per_step": 64},
    groups={
        "who learns": {
            JOINT: Arm("both agents", {}),
            "only_main": Arm("only main", {"agents": f"[{FROZEN}, {{}}]"}),
            "only_aux": Arm("only aux", {"agents": f"[{{}}, {FROZEN}]"}),
            "shared": Arm("both, with one policy", {"magrpo.policy": 0}),
            "single": Arm("one agent, twice the answers", {"magrpo.num_agents": 1, "magrpo.num_generations": 16}),
            "single_tokens": Arm("one agent, as many tokens", {"magrpo.num_agents": 1, "magrpo.num_generations": 11}),
        },
        "one turn": {
            "one_turn": Arm("one turn, twice the tasks", _ONE_TURN),
            "one_turn_only_main": Arm("the same, only main", {**_ONE_TURN, "agents": f"[{FROZEN}, {{}}]"}),
            "one_turn_only_aux": Arm("the same, only aux", {**_ONE_TURN, "agents": f"[{{}}, {FROZEN}]"}),
            "one_turn_shared": Arm("the same, with one policy", {**_ONE_TURN, "magrpo.policy": 0}),
            "single_one_turn": Arm(
                "one agent, one turn, as many tokens",
                {**_ONE_TURN, "magrpo.num_agents": 1, "magrpo.num_generations": 11},
            ),
        },
        "stop rule, preferences": {
            **_STOP,
            "one_turn_madpo": Arm("madpo, one turn, twice the tasks", {**_ONE_TURN, "magrpo.estimator": "madpo"}),
        },
        "critic, order, staleness; one turn": {
            "one_turn_maac": Arm(
                "critic maac, advantages normalised",
                {
                    **_ONE_TURN,
                    "magrpo.critic": "maac",
                    "magrpo.critic_learning_rate": 1e-2,
                    "magrpo.normalize_advantages": True,
                },
            ),
            "one_turn_in_turns": Arm("learn_in_turns: 5", {**_ONE_TURN, "magrpo.learn_in_turns": 5}),
            "one_turn_stale": Arm("max_staleness: 4", {**_ONE_TURN, "magrpo.max_staleness": 4}),
        },
        "feedback": _FEEDBACK,
        "handoff and joint mode": {
            **_HANDOFF,
            "cross": Arm("cross", {"magrpo.joint_mode": "cross"}),
        },
        "estimator": {
            "marloo": Arm("marloo", {"magrpo.estimator": "marloo"}),
            "maremax": Arm("maremax", {"magrpo.estimator": "maremax"}),
            "mareinforce": Arm("mareinforce", {"magrpo.estimator": "mareinforce"}),
            "remax": Arm("remax", {"magrpo.estimator": "remax"}),
            "reinforce_pp": Arm("reinforce_pp", {"magrpo.estimator": "reinforce_pp"}),
        },
        "credit and sampling": {
            "difference": Arm("difference", {"magrpo.estimator": "difference"}),
            "whitened": Arm("magrpo, whitened", {"magrpo.normalize_advantages": True}),
            "dynamic": Arm("magrpo, dynamic sampling", {"magrpo.dynamic_sampling": True}),
            "iac": Arm("critic iac, handoff all, G = 4, 6 tasks", _IAC),
            "iac_normalized": Arm("the same, advantages normalised", {**_IAC, "magrpo.normalize_advantages": True}),
        },
    },
    files=(HARD_TASKS_PATH, HARD_BASE_PATH / "model.safetensors"),
    columns={
        "reward": "reward",
        "passed": "passed",
        "passed_eval": "of known families",
        "passed_unseen": "of unseen",
        "first_passed": "in turn 1",
        "needs_aux": "needs aux",
        "agree": "agree",
    },
    compared=("passed", "first_passed"),
    drawn=("all_passed", "programs that pass all tests, last turn"),
    extra_metrics=agreement,
)

_HELD_OUT = {
    "dataset.name": "python:benchmarks.learning.held_out:TASKS",
    "magrpo.eval_num_generations": 8,
    "output.episodes_per_step": 256,
}
"""Four times as many held-out tasks as in the other studies, with twice as many answers of each."""

TOY_PRIMARY = Study(
    name="toy-primary",
    config=TOY_HARD.config,
    common={"magrpo.num_train_epochs": 100, "magrpo.max_steps": 60, **_ONE_TURN, **_HELD_OUT},
    groups={
        "who learns, with one turn": {
            JOINT: Arm("both agents", {}),
            "only_main": TOY_HARD.arms["only_main"],
            "only_aux": TOY_HARD.arms["only_aux"],
            "shared": TOY_HARD.arms["shared"],
            "single_tokens": TOY_HARD.arms["single_tokens"],
        }
    },
    files=TOY_HARD.files,
    columns={
        "reward": "reward",
        "passed": "passed",
        "passed_eval": "of known families",
        "passed_unseen": "of unseen",
        "needs_aux": "needs aux",
        "agree": "agree",
    },
    compared=("passed",),
    drawn=("all_passed", "programs that pass all tests"),
    extra_metrics=agreement,
)
"""The arms of the primary family (`benchmarks.learning.primary`), on more held-out tasks."""


def _at_three_rates(estimator: str) -> dict[str, Arm]:
    """Return an estimator's arms: at a third of the config's learning rate, at the config's, and at three times it."""
    return {
        JOINT if (estimator, rate) == ("magrpo", 5e-4) else f"{estimator}_{rate}": Arm(
            f"{estimator}, {rate}", {"magrpo.estimator": estimator, "magrpo.learning_rate": rate}
        )
        for rate in (1.7e-4, 5e-4, 1.5e-3)
    }


TOY_ESTIMATORS = replace(
    TOY_PRIMARY,
    name="toy-estimators",
    common={**TOY_PRIMARY.common, "magrpo.max_steps": 40, "magrpo.eval_num_generations": 2},
    groups={
        estimator: _at_three_rates(estimator)
        for estimator in ("magrpo", "maremax", "mareinforce", "remax", "reinforce_pp", "centred_difference")
    },
)
"""Estimators, each at three learning rates."""

TOY_REVISING = Study(
    name="toy-revising",
    config=TOY_HARD.config,
    common={
        "model.name": "bundled:toy-revising-base",
        "magrpo.num_train_epochs": 100,
        "magrpo.max_steps": 40,
        "output.episodes_per_step": 64,
    },
    groups={
        "feedback": {JOINT: Arm("told level_feedback", {}), **_FEEDBACK},
        "stop rule and handoff": {**_STOP, **_HANDOFF},
    },
    files=(HARD_TASKS_PATH, REVISING_BASE_PATH / "model.safetensors"),
    columns={
        "reward": "reward",
        "first_passed": "passed in turn 1",
        "pass@2": "pass@2 of first answers",
        "passed": "passed in turn 2",
        "keep_rate": "kept",
        "fix_rate": "mended",
        "agree": "agree",
    },
    compared=("first_passed", "passed"),
    drawn=TOY_HARD.drawn,
    extra_metrics=agreement,
)
"""How agents use the messages between turns, with a base policy that was shown how to revise."""

TOY_GATEWAY = Study(
    name="toy-gateway",
    config=TOY_HARD.config,
    common={
        "magrpo.num_turns": 1,
        "magrpo.num_train_epochs": 100,
        "magrpo.max_steps": 36,
        "output.episodes_per_step": 64,
    },
    groups={
        "one turn": {
            JOINT: Arm("native environment", {}),
            "service": Arm(
                "program behind the gateway",
                {
                    "environment": "gateway",
                    "gateway.command": "python docs/examples/writers_service.py 64",
                    "gateway.service": True,
                    "gateway.concurrency": 64,
                    "gateway.roles": "[helper, main]",
                    "gateway.reward": "judge",
                    "gateway.judge": "code_generation",
                },
            ),
        }
    },
    files=TOY_HARD.files,
    columns={"reward": "reward", "passed": "passed"},
    compared=("reward", "passed"),
    drawn=("reward_mean", "reward"),
)
"""The same tasks and prompts, played by the environment itself and by a program that calls the agents over HTTP."""

GRID = Study(
    name="grid",
    config=CONFIGS / "toy_grid.yaml",
    common={"output.episodes_per_step": 128},
    groups={"feedback": {JOINT: Arm("told every mark", {}), "plain": _FEEDBACK["plain"]}},
    files=(GRIDS_PATH, GRID_BASE_PATH / "model.safetensors"),
    columns={
        "reward": "reward in turn 3",
        "first_cells": "right cells in turn 1",
        "cells": "right cells in turn 3",
        "passed": "complete",
    },
    compared=("reward", "cells"),
    drawn=("cells_right", "right cells in turn 3"),
)
"""A task in which only feedback can help, since no prompt tells the target."""

GRID_PRIVATE = Study(
    name="grid-private",
    config=CONFIGS / "toy_grid_private.yaml",
    common={"output.episodes_per_step": 128},
    groups={
        "private halves": {
            JOINT: Arm("a pair, each with one half", {}),
            "plain": Arm("the same, told nothing", {"external.mode": "plain"}),
            "single": Arm("one agent with one half", {"magrpo.num_agents": 1, "magrpo.num_generations": 6}),
            "slow": Arm("a pair, a third of the rate", {"magrpo.learning_rate": 3.3e-4}),
        }
    },
    files=(GRIDS_PATH, GRID_BASE_PATH / "model.safetensors"),
    columns={
        "first_reward": "reward in turn 1",
        "reward": "reward in turn 2",
        "cells": "right cells in turn 2",
        "passed": "complete",
        "pass@2": "pass@2 of first answers",
        "keep_rate": "kept",
        "fix_rate": "mended",
    },
    compared=("reward", "cells"),
    drawn=("reward_mean", "reward in turn 2"),
)
"""A task that no agent can solve alone: each agent knows the half that the other one has to write."""

MBPP = Study(
    name="mbpp",
    config=CONFIGS / "magrpo_mbpp_smollm2.yaml",
    common={
        "model.model_kwargs.torch_dtype": "bfloat16",
        "dataset.eval_split": "validation[:64]",
        "magrpo.num_train_epochs": 100,
        "magrpo.max_steps": 100,
        "magrpo.eval_interval": 50,
        "magrpo.eval_num_generations": 2,
        "magrpo.save_steps": 20,
        "output.save_final_model": False,
        "output.episodes_per_step": 64,
        "output.probe_helpers": "eval",
    },
    groups={
        "who learns": {
            JOINT: Arm("both agents", {}),
            "only_main": Arm("only main", {"agents": f"[{FROZEN}, {{}}]"}),
        }
    },
    files=(),
    columns={
        "reward": "reward",
        "aux_defined": "aux defined",
        "main_defined": "main defined",
        "syntax": "parses",
        "tests": "tests passed",
        "passed": "all passed",
        "aux_called": "main calls aux",
        "needs_aux": "needs aux",
    },
    compared=("reward",),
    drawn=("reward_mean", "reward: of a step's answers, and of held-out tasks"),
    marked=True,
)
STUDIES = {
    study.name: study
    for study in (TOY_HARD, TOY_PRIMARY, TOY_ESTIMATORS, TOY_REVISING, TOY_GATEWAY, GRID, GRID_PRIVATE, MBPP, TOY_MATH)
}
