"""benchmarks/learning: arms that can run, intervals of the textbook, a page that is up to date."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import matplotlib.image
import pytest
import yaml

from benchmarks.learning.__main__ import RESULTS, current
from benchmarks.learning.expert import MODEL, serving
from benchmarks.learning.measures import measure, read_lines
from benchmarks.learning.report import draw, table
from benchmarks.learning.studies import FEWER, JOINT, STUDIES, TOY_HARD, Study
from marl_ray.config import ExternalConfig, from_tree, parse_overrides
from marl_ray.config.budget import training_budget
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.endpoints import endpoint_of
from marl_ray.external.modes import Expert
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.toy import HARD_TASKS_PATH
from tests.factories import row_task

PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = {
    "relay": "branch_replays.md",
    "loud-relay": "branch_replays.md",
    "toy-revising": "feedback.md",
    "grid": "feedback.md",
    "grid-private": "feedback.md",
    "toy-gateway": "../reference/gateway.md",
    "toy-primary": "who_learns.md",
    "toy-estimators": "estimators_compared.md",
    "mbpp": "smollm2.md",
}
"""Page of a study; the others are in learning.md."""
CASES = [(study, arm) for study in STUDIES.values() for arm in study.arms]


@pytest.mark.parametrize(("study", "name"), CASES, ids=[f"{study.name}-{arm}" for study, arm in CASES])
def test_an_arm_is_a_config_of_as_many_steps_and_about_as_many_answers_as_the_joint_one(
    study: Study, name: str
) -> None:
    def answers(arm: str) -> tuple[int, int]:
        settings = {**study.common, **study.arms[arm].overrides}
        overrides = parse_overrides([f"{key}={value}" for key, value in settings.items()])
        config = from_tree(yaml.safe_load(study.config.read_text()), "magrpo", overrides)
        found = training_budget(config, 214)
        # With branch replays a task has more runs of its program than siblings.
        siblings = config.section(GatewayConfig).runs_per_task(config.training.group_sizes[0])
        return found.total_steps, found.groups_per_step * siblings * config.num_agents

    (steps, own), (joint_steps, joint) = answers(name), answers(JOINT)
    assert steps == joint_steps
    assert (0.6 if name in FEWER else 0.9) < own / joint < 1.1


def test_differences_are_paired_by_seed() -> None:
    def line(arm: str, seed: int, passed: float) -> dict[str, object]:
        after = {"passed": passed, "first_passed": 1.0}
        return {"arm": arm, "seed": seed, "before": {"passed": 0.1}, "after": after, "curve": [[9, 1, 0], [3000, 1, 0]]}

    lines = [line(JOINT, 1, 0.5), line(JOINT, 2, 0.9), line("only_main", 2, 0.8), line("only_main", 1, 0.4)]
    *_, last = table([*lines, line("only_main", 3, 0.9)], TOY_HARD).splitlines()
    assert last.startswith("| only main | 3 | 3 |")
    assert last.endswith("| -0.10 ± 0.00 | +0.00 ± 0.00 |")


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
    for study in STUDIES.values():
        curve = [[100 * step, 1.0, 0.1 * step] for step in range(1, 4)]
        marks = [[0, 0, 0.5, 0.1, 0.0], [3, 300, 1.0, 0.2, 0.1]]
        lines = [{"arm": arm, "seed": 1, "curve": curve, "evaluations": marks} for arm in study.arms]
        draw(lines, study, tmp_path / "drawn.png")
        height, width = matplotlib.image.imread(tmp_path / "drawn.png").shape[:2]
        wide = min(3, len(study.groups))
        high = -(-len(study.groups) // 3)
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
