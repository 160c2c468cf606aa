"""Solver and verifier, and debate: prompts, rewards, degenerate policies, choices between samples, contracts."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest

from marl_ray.config import load
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.evaluation.results import measure_task
from marl_ray.plugins.math.debate import Debate
from marl_ray.plugins.math.options import MathConfig
from marl_ray.plugins.math.problem import MathEnvironment
from marl_ray.plugins.math.solver_verifier import SolverVerifier
from marl_ray.testing import check_environment
from tests.factories import make_config, make_episode, make_node

TASK = Task("t", "Start with 7. Multiply by 2.", {"reference": "14"})
CORRECTS = MathConfig(verifier="corrects")


def played(environment: MathEnvironment, *responses: str) -> Outcome:
    attempt = environment.attempt(TASK, responses, last=False)
    assert attempt.program is None
    return environment.outcome(attempt, None)


@pytest.mark.parametrize(
    ("verifier", "solver", "rewards"),
    [
        ("Verdict: right", "#### 14", (1.0, 1.0)),
        ("Verdict: right", "#### 9", (0.0, 0.0)),
        ("7*2=14\nVerdict: wrong", "#### 9", (1.0, 0.0)),
        ("Verdict: wrong", "#### 14", (0.0, 1.0)),
        ("no verdict", "#### 9", (0.0, 0.0)),  # silence is no judgement
        ("verdict: RIGHT. Verdict: wrong", "", (1.0, 0.0)),
    ],
)
def test_each_agent_earns_its_own_correctness(verifier: str, solver: str, rewards: tuple[float, float]) -> None:
    outcome = played(SolverVerifier(2), verifier, solver)
    assert outcome.rewards == rewards
    assert outcome.reward == sum(outcome.levels.values()) == sum(rewards)
    assert outcome.metrics["all_passed"] == rewards[1]


def test_a_correcting_verifier_gives_the_final_answer() -> None:
    mended = played(SolverVerifier(2, CORRECTS), "#### 14", "#### 9")
    assert mended.rewards == (1.0, 0.0)
    assert (mended.metrics["all_passed"], mended.metrics["verdict_right"]) == (1.0, 1.0)
    spoilt = played(SolverVerifier(2, CORRECTS), "#### 9", "#### 14")
    assert spoilt.rewards == (0.0, 1.0)
    assert (spoilt.metrics["all_passed"], spoilt.metrics["verdict_right"]) == (0.0, 0.0)
    with pytest.raises(UserError, match="num_agents to 2"):
        SolverVerifier(3, CORRECTS)


def test_a_verifier_reads_the_answer_and_the_solver_the_verdict() -> None:
    environment = SolverVerifier(2)
    check, solve = environment.first_prompts(TASK)
    read = environment.prompt_after(TASK, 0, check, {1: "7*2=9\n#### 9"})
    assert read.startswith("A solver's answer:\n7*2=9\n#### 9\n\nStart with 7.")
    assert "14" not in read + solve
    attempt = environment.attempt(TASK, ["7*2=14\nVerdict: wrong", "#### 9"], last=False)
    outcome = environment.outcome(attempt, None)
    assert environment.feedback(attempt, outcome, "level_feedback", 1) == ["verifier:", "7*2=14", "Verdict: wrong"]
    assert environment.feedback(attempt, outcome, "level_feedback", 0) == []
    assert not environment.solved(attempt, outcome, "visible")
    fooled = environment.attempt(TASK, ["Verdict: right", "#### 9"], last=False)
    outcome = environment.outcome(fooled, None)
    assert environment.solved(fooled, outcome, "visible")
    assert not environment.solved(fooled, outcome, "all")


def test_debaters_read_each_other_and_a_tie_does_not_pass() -> None:
    environment = Debate(2)
    attempt = environment.attempt(TASK, ["#### 14", "7*2=9\n#### 9"], last=False)
    outcome = environment.outcome(attempt, None)
    assert outcome.rewards == (1.0, 0.0)
    assert (outcome.reward, outcome.metrics["all_passed"], outcome.metrics["agreed"]) == (0.5, 0.0, 0.0)
    assert environment.feedback(attempt, outcome, "level_feedback", 0) == ["solver_2:", "7*2=9", "#### 9"]
    assert played(Debate(3), "#### 14", "#### 9", "#### 14.0").metrics["all_passed"] == 1.0
    assert played(Debate(3), "#### 9", "", "#### 9").metrics["all_passed"] == 0.0


def test_majority_and_accepted_answers_are_choices_between_samples() -> None:
    environment = SolverVerifier(2)
    samples = [
        played(environment, "Verdict: wrong", "#### 9"),
        played(environment, "Verdict: wrong", "#### 9"),
        played(environment, "Verdict: right", "#### 14.0"),
        played(environment, "Verdict: right", "#### 20"),
    ]
    assert environment.sample_metrics(samples) == {"majority": 0.0, "best": 0.5}
    assert environment.sample_metrics(samples[2:]) == {"majority": 0.5, "best": 0.5}  # a tie
    assert environment.sample_metrics(samples[:1]) == {"majority": 0.0, "best": 0.0}  # none is accepted
    assert environment.sample_metrics([played(environment, "", "")]) == {"majority": 0.0, "best": 0.0}


def test_an_evaluation_reports_choices_between_k_samples() -> None:
    environment = SolverVerifier(2)
    episodes = []
    for number in (9, 14, 14, 20):
        outcome = played(environment, f"Verdict: {'right' if number == 14 else 'wrong'}", f"#### {number}")
        node = make_node(0, [outcome.reward])
        node.joint_actions = [type(node.joint_actions[0])((0, 0), outcome, outcome.reward, outcome.rewards)]
        episodes.append(make_episode(node))
    numbers = measure_task(episodes, make_config(num_turns=1).training, False, [1, 2, 4], environment).numbers
    assert "turn_1/majority@1" not in numbers
    assert numbers["turn_1/majority@2"] == 0.5  # 9 or 14, and 14 or 20
    assert (numbers["turn_1/majority@4"], numbers["turn_1/best@2"], numbers["turn_1/best@4"]) == (1.0, 1.0, 1.0)


def test_degenerate_policies_earn_what_the_page_says() -> None:
    tasks = load_tasks("bundled:arithmetic", "eval")
    ((_, count),) = Counter(task.fields["reference"] for task in tasks).most_common(1)
    environment = SolverVerifier(2)
    earned = []
    for task in tasks:
        attempt = environment.attempt(task, ["Verdict: wrong", "#### 15"], last=True)
        earned.append(environment.outcome(attempt, None).rewards)
    assert fmean(solver for _, solver in earned) <= count / len(tasks) < 0.1
    assert fmean(verifier for verifier, _ in earned) > 0.9  # a constant verdict on a constant answer


def test_other_kinds_of_answers_need_the_symbolic_comparison() -> None:
    root = Task("r", "p", {"reference": r"2\sqrt{2}"})
    with pytest.raises(UserError, match=r"set math.answers to symbolic \(install marl-ray\[math\]\)"):
        SolverVerifier(2).check_task(root)
    symbolic = SolverVerifier(2, MathConfig(answers="symbolic"))
    symbolic.check_task(root)
    attempt = symbolic.attempt(root, [r"\boxed{\sqrt{8}}", r"\boxed{\sqrt{8}}"], last=True)
    assert attempt.program is not None
    assert attempt.program.number_of_tests == 1  # equal answers are compared once
    assert symbolic.attempt(TASK, ["", "#### 9"], last=True).program is None  # numbers need no algebra


def test_missing_packages_are_named_before_a_run() -> None:
    config = make_config(sections={"math": {"answers": "symbolic"}})
    with pytest.raises(UserError, match=r"install marl-ray\[math\]|needs sandbox.packages: \[math_verify"):
        SolverVerifier.from_config(config)
    assert Debate.from_config(make_config()).options == MathConfig()


@pytest.mark.parametrize(
    "environment", [SolverVerifier(1), SolverVerifier(2), SolverVerifier(3), SolverVerifier(2, CORRECTS), Debate(3)]
)
def test_the_contract_of_environments_holds(environment: MathEnvironment) -> None:
    texts = ["#### 14", "Verdict: right", r"\boxed{9}"]
    answers = [texts[:1], texts[1:2], texts[2:]]
    if environment.num_agents > 1:
        answers = [texts[: environment.num_agents], texts[::-1][: environment.num_agents]]
    check_environment(environment, [TASK, *load_tasks("bundled:arithmetic", "eval[:1]")], answers)


def test_the_configs_are_checked() -> None:
    for name in ("toy_math", "magrpo_gsm8k_config", "mt_magrpo_math_config"):
        config = load(f"configs/{name}.yaml", "magrpo")
        assert config.num_agents == 2
