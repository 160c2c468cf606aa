"""The texts of the environment between two turns, read from a record."""

from __future__ import annotations

from marl_ray.telemetry.recorded_episode import told_before

HELPER = "def aux(n):\n    return n\n"
MAIN = "def main(n):\n    return aux(n)\n"
PARENT = {
    "prompts": ["Double a number, with a helper.", [{"role": "user", "content": "Call the helper of your partner."}]],
    "responses": [["no", HELPER], [MAIN, "no"]],
    "joint_actions": [{"indices": [0, 0]}, {"indices": [1, 0]}],
}
REST = "\n\nFeedback:\ntests: 0 of 2 passed\n\nRevise it."


def test_seen_texts_are_names_and_lines_of_all_agents_are_shared() -> None:
    prompts = [f"Your previous answer:\n{own}{REST}" for own in (HELPER, f"{MAIN}\nThe helper: no")]
    told = told_before(PARENT, {"path": [1], "prompts": prompts}, ["helper", "main"])
    assert told.by_agent == (
        f"Your previous answer:\n[the answer of helper]\n{REST}",
        f"Your previous answer:\n[the answer of main]\n\nThe helper: no{REST}",
    )
    assert told.shared == "Feedback:\ntests: 0 of 2 passed\nRevise it.", "without headings of seen texts"
