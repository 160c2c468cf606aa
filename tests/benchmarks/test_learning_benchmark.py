"""benchmarks/learning: arms that can run, intervals of the textbook, a page that is up to date."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import pytest
import torch

from benchmarks.learning import __main__ as runs
from benchmarks.learning import drops, fall
from benchmarks.learning.__main__ import RESULTS, current
from benchmarks.learning.catalogue import STUDIES
from benchmarks.learning.expert import MODEL, serving
from benchmarks.learning.grid_studies import told
from benchmarks.learning.measures import measure, read_lines
from benchmarks.learning.open_grid import OpenGrid
from benchmarks.learning.report import draw, exact_interval, peak_less_final, table
from benchmarks.learning.studies import FEWER, TOY_HARD
from benchmarks.learning.study import JOINT, Study
from marl_ray.config import ExternalConfig
from marl_ray.config.budget import training_budget
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.endpoints import endpoint_of
from marl_ray.external.modes import Expert
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.grid.rows import GRID as GRID_TYPE
from marl_ray.toy import HARD_TASKS_PATH
from tests.factories import row_task, study_config

PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = {
    "toy-math": "math.md",
    "relay": "branch_replays.md",
    "loud-relay": "branch_replays.md",
    "toy-revising": "feedback.md",
    "grid": "feedback.md",
    "grid-private": "feedback.md",
    "grid-telling": "undemonstrated.md",
    "grid-falls": "falls.md",
    "plan-path": "plan_path.md",
    "plan-path-boxes": "plan_path.md",
    "plan-path-credit": "plan_path.md",
    "hanabi": "hanabi.md",
    "toy-gateway": "../reference/gateway.md",
    "toy-primary": "who_learns.md",
    "toy-second-turn": "second_turn.md",
    "toy-estimators": "estimators_compared.md",
    "mbpp": "smollm2.md",
}
"""Page of a study; the others are in learning.md."""
OWN_SIZES = {"toy-second-turn", "plan-path-credit"}
"""Studies whose number of answers a test of their own counts."""
CASES = [(study, arm) for study in STUDIES.values() if study.name not in OWN_SIZES for arm in study.arms]


@pytest.mark.parametrize(("study", "name"), CASES, ids=[f"{study.name}-{arm}" for study, arm in CASES])
def test_an_arm_is_a_config_of_as_many_steps_and_about_as_many_answers_as_the_joint_one(
    study: Study, name: str
) -> None:
    def answers(arm: str) -> tuple[int, int]:
        config = study_config(study, arm)
        found = training_budget(config, 214)
        # With branch replays a task has more runs of its program than siblings.
        siblings = config.section(GatewayConfig).runs_per_task(config.training.group_sizes[0])
        return found.total_steps, found.groups_per_step * siblings * config.num_agents

    (steps, own), (joint_steps, joint) = answers(name), answers(JOINT)
    assert steps == joint_steps
    assert (0.6 if name in FEWER else 0.9) < own / joint < 1.1


def test_all_kinds_of_credit_in_rooms_have_as_many_joint_answers() -> None:
    study = STUDIES["plan-path-credit"]
    found = {}
    for name in study.arms:
        config = study_config(study, name)
        size = config.training.group_sizes[0]
        joint_answers = config.section(GatewayConfig).runs_per_task(size)
        if name == "removal":
            joint_answers += size * config.num_agents
        if name == "turns":  # in an order: G of the followed plan, and one for each other plan
            joint_answers = config.num_agents * (size - 1) + 1
        found[name] = joint_answers
    assert found == {JOINT: 15, "calls": 15, "removal": 15, "turns": 15}


def test_differences_are_paired_by_seed() -> None:
    def line(arm: str, seed: int, passed: float) -> dict[str, object]:
        after = {"passed": passed, "first_passed": 1.0}
        return {"arm": arm, "seed": seed, "before": {"passed": 0.1}, "after": after, "curve": [[9, 1, 0], [3000, 1, 0]]}

    lines = [line(JOINT, 1, 0.5), line(JOINT, 2, 0.9), line("only_main", 2, 0.8), line("only_main", 1, 0.4)]
    *_, last = table([*lines, line("only_main", 3, 0.9)], TOY_HARD).splitlines()
    assert last.startswith("| only main | 3 | 3 |")
    assert last.endswith("| -0.10 ± 0.00 | +0.00 ± 0.00 | 0.00, at most 0.00 |")


def test_a_fall_is_the_loss_since_the_best_held_out_evaluation_or_the_best_eight_steps() -> None:
    curve = [[step, reward, 0.0] for step, reward in enumerate([0.0] * 8 + [2.0] * 8 + [1.5] * 8)]
    ends = [[0, 0, 0.4, 0.1, 0.0], [60, 9, 1.9, 0.1, 0.0]]
    assert peak_less_final({"curve": curve, "evaluations": ends}) == pytest.approx(0.5)
    between = [ends[0], [30, 5, 2.0, 0.1, 0.0], ends[1]]
    assert peak_less_final({"curve": curve, "evaluations": between}) == pytest.approx(0.1)
    assert peak_less_final({"curve": curve[:3]}) == 0.0


def test_an_exact_interval_leaves_out_a_fortieth_on_each_side() -> None:
    assert exact_interval(0, 8) == pytest.approx((0.0, 1 - 0.025 ** (1 / 8)))
    assert exact_interval(8, 8) == pytest.approx((0.025 ** (1 / 8), 1.0))
    low, high = exact_interval(3, 8)
    assert sum(math.comb(8, k) * low**k * (1 - low) ** (8 - k) for k in range(3, 9)) == pytest.approx(0.025)
    assert sum(math.comb(8, k) * high**k * (1 - high) ** (8 - k) for k in range(4)) == pytest.approx(0.025)


def test_a_table_counts_the_seeds_that_learn_and_has_every_base_policy_before_training() -> None:
    rewards = {JOINT: [0.3, 1.2], "chance_shared": [1.9, 1.8], "tenth_one": [0.3, 0.3], "half_pair": [1.9, 1.9]}
    lines = []
    for arm, after in rewards.items():
        for seed, reward in enumerate(after):
            ends = {"before": {"reward": 0.3}, "after": {"reward": reward}}
            lines.append({"arm": arm, "seed": seed, "curve": [[9, 1, 0], [3000, 1, 0]], **ends})
    text = table(lines, STUDIES["grid-telling"])
    assert "| 1 [0.01, 0.99] |" in text
    assert "| 2 [0.16, 1.00] |" in text
    assert "| before training | 2 |" in text
    assert "| before training, told in 0.5: a pair | 2 |" in text
    assert "before training, told at chance" not in text


def test_an_open_grid_shows_an_agent_all_rows() -> None:
    task = GRID_TYPE.task({"target": ["abc", "cab"], "letters": "abc"}, 0)
    (prompt,) = OpenGrid(1).first_prompts(task)
    assert "Row 1 should be: a b c\nRow 2 should be: c a b\nWrite rows 1 to 2.\n" in prompt


def test_told_counts_first_answers_that_are_the_rows_of_the_prompt(tmp_path: Path) -> None:
    prompts = ["Row 2 should be: a b c\nWrite row 1.\n", "Row 1 should be: b b b\nWrite row 2.\n"]
    node = {"prompts": prompts, "responses": [["a b c", "a c b"], ["b b b", "bbb"]]}
    episode = {"kind": "eval", "step": 20, "nodes": [node, {"prompts": [], "responses": []}]}
    (tmp_path / "episodes.jsonl").write_text(json.dumps(episode) + "\n")
    assert told(tmp_path, 20, 2) == {"told": 0.5}


def test_a_missing_base_policy_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        folder.mkdir()

    monkeypatch.setattr(runs, "ROOT", tmp_path)
    study = replace(STUDIES["grid"], models={"base": make})
    for _ in range(2):
        assert runs.made_base(study, "base") == tmp_path / "base"
    assert made == [tmp_path / "base"]


def _run(folder: Path, rewards: list[float], tasks_played: int) -> Path:
    """Write a run of one step. Each task has one answer; the run keeps as many episodes as there are rewards."""

    def evaluation(step: int) -> dict[str, float]:
        mean = sum(rewards) / len(rewards)
        numbers = {"reward_mean": mean, "all_passed": 0.5}
        return {"step": step, "eval/episodes": tasks_played} | {f"eval/turn_1/{k}": v for k, v in numbers.items()}

    step = {"step": 1, "rollout/tokens": 100, "time/step": 2.0, "turn_1/reward_mean": 1.0, "turn_1/all_passed": 0.5}
    episodes = [
        {"kind": "eval", "step": at, "task": str(task), "nodes": [{"turn": 1, "joint_actions": [{"reward": reward}]}]}
        for at in (0, 1)
        for task, reward in enumerate(rewards)
    ]
    for name, rows in {"metrics": [evaluation(0), step, evaluation(1)], "episodes": episodes}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_an_evaluations_interval_is_over_all_its_tasks(tmp_path: Path) -> None:
    found = measure(_run(tmp_path, [1.0, 2.0, 3.0], 3), "all_passed", lambda run, step, last: {})
    assert found["evaluations"] == [[0, 0, 2.0, round(1.96 / 3**0.5, 4), 0.5], [1, 100, 2.0, 1.1316, 0.5]]
    with pytest.raises(ValueError, match="not all tasks"):
        measure(_run(tmp_path, [1.0, 2.0, 3.0], 64), "all_passed", lambda run, step, last: {})


def test_every_group_of_arms_has_its_panel_and_every_arm_its_colour(tmp_path: Path) -> None:
    one_per_number_of_panels = {len(study.groups): study for study in STUDIES.values()}
    for study in one_per_number_of_panels.values():
        curve = [[100 * step, 1.0, 0.1 * step] for step in range(1, 4)]
        marks = [[0, 0, 0.5, 0.1, 0.0], [3, 300, 1.0, 0.2, 0.1]]
        lines = [{"arm": arm, "seed": 1, "curve": curve, "evaluations": marks} for arm in study.arms]
        draw(lines, study, tmp_path / "drawn.png")
        height, width = matplotlib.image.imread(tmp_path / "drawn.png").shape[:2]
        wide, high = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2), 5: (3, 2), 6: (3, 2), 8: (3, 3)}[len(study.groups)]
        assert width / height == pytest.approx((1.0 + 4.2 * wide) / (5.4 * high), rel=0.02)


def test_the_expert_of_the_hard_set_suggests_a_pair_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any word")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    rows, pair = read_lines(HARD_TASKS_PATH)[::10], CodeGeneration(2)

    async def suggested(address: str) -> list[dict[str, str] | None]:
        expert = Expert(endpoint_of(ExternalConfig(expert_model=MODEL, expert_base_url=address)))
        tasks = [row_task(row) for row in rows]
        questions = [pair.question(task, pair.attempt(task, ["nonsense", "pass"], last=False)) for task in tasks]
        asked = [expert.edits(text, pair.roles(task)) for text, task in zip(questions, tasks, strict=True)]
        return await asyncio.gather(*asked, expert.edits("What of a problem that is not there?", ["aux"]))

    with serving(rows) as address:
        *found, unknown = asyncio.run(suggested(address))
    assert found == [{"aux": row["aux_solution"], row["entry_point"]: row["main_solution"]} for row in rows]
    assert unknown is None


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_the_page_has_the_table_of_its_results(study: Study) -> None:
    lines = current(study, RESULTS)
    assert not lines or table(lines, study) in (PAGES / PAGE.get(study.name, "learning.md")).read_text()


def test_the_page_of_falls_has_the_table_of_its_rows() -> None:
    assert fall.table(read_lines(RESULTS / "grid-fall-seed-1.jsonl")) in (PAGES / "falls.md").read_text()


def test_a_dip_is_the_largest_drop_below_an_earlier_evaluation() -> None:
    def line(*rewards: float) -> dict[str, object]:
        evaluations = [[step, 0, reward, 0.0, 0.0] for step, reward in enumerate(rewards)]
        return {"arm": JOINT, "seed": 1, "curve": [], "evaluations": evaluations}

    assert drops.dip(line(0.4, 2.0, 1.6, 1.95)) == pytest.approx(0.4)
    assert drops.dip(line(0.4, 0.5)) == 0.0
    found = drops.table([line(0.4, 2.0, 1.6, 1.95), line(0.4, 2.0, 1.75)], STUDIES["grid-falls"])
    assert found.splitlines()[-1] == "| a pair, as the config | 2 | 1 | 0.25 | 2 | 0.40 |"


def test_the_page_of_falls_has_the_table_of_drops() -> None:
    study = STUDIES["grid-falls"]
    page = (PAGES / "falls.md").read_text()
    assert drops.table(current(study, RESULTS), study) in page
    assert drops.primary(current(study, RESULTS)) in page


def test_an_update_is_split_into_its_gradients_part_and_momentum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDATE_SIZES", str(tmp_path))
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = fall.RecordedAdamW([weight], lr=0.1, weight_decay=0.0)
    for gradient in (2.0, 0.0):
        weight.grad = torch.full((3,), gradient)
        optimizer.step()
    (file,) = tmp_path.iterdir()
    first, second = read_lines(file)
    assert first == pytest.approx({"optimizer_step": 1, "gradient": 2 * 3**0.5, "update": 1.0, "own": 1.0}, rel=1e-3)
    # m = 0.09 * 2 / 0.19 and v = 0.000999 * 4 / 0.001999, corrected for their start at 0
    assert second["own"] == 0.0
    assert second["update"] == pytest.approx(0.18 / 0.19 / (0.003996 / 0.001999) ** 0.5, rel=1e-3)
