"""Episodes as plain text."""

from __future__ import annotations

from dataclasses import replace

from marl_ray.environments.execution import ExecutionEvidence
from marl_ray.results import run_summary
from marl_ray.results.run_summary import episode_text
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis, TestResult
from tests.factories import Verdict, make_episode, make_node


def test_a_chain_shows_the_expanded_joint_actions() -> None:
    chain = make_episode(
        make_node(
            0, [1.0, 3.0], {1: make_node(1, [4.0, 4.0])}, levels={"tests": 0.5, "main": -0.25}, evidence=Verdict("fine")
        )
    )
    rule = "=" * 100
    assert episode_text(chain) == "\n".join(
        [
            rule,
            "toy/1",
            rule,
            "--- turn 1: reward 3.00   (tests +0.50  main -0.25)",
            "[agent 0 prompt]",
            "    | prompt 0.0",
            "[agent 0 response]",
            "    | answer 0.0.1",
            "[agent 1 prompt]",
            "    | prompt 0.1",
            "[agent 1 response]",
            "    | answer 0.1.1",
            "verdict: fine",
            "--- turn 2: reward 4.00",
            "[agent 0 prompt]",
            "    | prompt 1.0",
            "[agent 0 response]",
            "    | answer 1.0.0",
            "[agent 1 prompt]",
            "    | prompt 1.1",
            "[agent 1 response]",
            "    | answer 1.1.0",
            "",
        ]
    )


def test_a_tree_shows_its_first_path_and_counts_the_rest() -> None:
    tree = make_episode(
        make_node(0, [1.0, 2.0, 3.0], {1: make_node(1, [5.0], {0: make_node(2, [7.0])}), 2: make_node(1, [6.0])}),
        ((2,), "early_termination"),
        ((0,), "prompt_too_long"),
        ((1, 0), "early_termination"),
    )
    text = episode_text(tree)
    assert [line[:25] for line in text.splitlines() if line.startswith("---")] == [
        "--- turn 1: reward 2.00",
        "--- turn 2: reward 5.00",
        "--- turn 3: reward 7.00",
        "--- and 1 other node of t",
    ]
    assert text.splitlines()[1] == "toy/1   2 x early_termination, prompt_too_long"


def test_a_stopped_path_shows_its_expanded_joint_action() -> None:
    stopped = make_episode(make_node(0, [1.0, 2.0], transitions={1: {}}), ((1,), "prompt_too_long"))
    assert "turn 1: reward 2.00" in episode_text(stopped)


def test_rewards_of_the_agents_and_an_episode_without_a_node() -> None:
    root = make_node(0, [1.0])
    root.joint_actions = [replace(root.joint_actions[0], rewards=(1.0, -1.0))]
    assert "rewards of the agents: 1.00 -1.00" in episode_text(make_episode(root))
    assert episode_text(make_episode(None, ((), "prompt_too_long"))).splitlines()[1] == "toy/1   prompt_too_long"


def test_roles_are_named_and_a_rounded_zero_has_no_sign() -> None:
    episode = make_episode(make_node(0, [-0.001], levels={"moves": -0.0}))
    episode.roles = ("verifier", "solver")
    lines = episode_text(episode).splitlines()
    assert "--- turn 1: reward 0.00   (moves +0.00)" in lines
    assert [line for line in lines if line.startswith("[")] == [
        "[agent 0, verifier: prompt]",
        "[agent 0, verifier: response]",
        "[agent 1, solver: prompt]",
        "[agent 1, solver: response]",
    ]


def test_a_message_of_a_program_forges_no_line() -> None:
    verdict = TestResult(
        "error", "E\nrror", "no\n--- turn 2: reward 9.00\r\u2028[agent 0 prompt]", source="assert f(1)"
    )
    report = ExecutionReport((verdict,), SyntaxDiagnosis("bad\n[sandbox] 1 of 1", 1, 1), "", 0.0, 0.0, "none", True)
    lines = ExecutionEvidence(report).lines()
    assert len("\n".join(lines).splitlines()) == len(lines) == 2
    assert run_summary._indent("a\r--- turn 9\u2028b").splitlines() == ["    | a", "    | --- turn 9", "    | b"]
