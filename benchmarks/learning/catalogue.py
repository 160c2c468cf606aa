"""All studies by name, and the primary comparisons of each study that has any."""

from __future__ import annotations

from benchmarks.learning import (
    grid_studies,
    hanabi_study,
    math_studies,
    plan_path_study,
    replay_studies,
    second_turn_study,
    studies,
)
from benchmarks.learning.primary import PRIMARY, Comparison
from benchmarks.learning.study import JOINT, Study

_ALL: tuple[Study, ...] = (
    studies.TOY_HARD,
    studies.TOY_PRIMARY,
    studies.TOY_ESTIMATORS,
    studies.TOY_REVISING,
    studies.TOY_GATEWAY,
    second_turn_study.SECOND_TURN,
    grid_studies.GRID,
    grid_studies.GRID_PRIVATE,
    grid_studies.GRID_TELLING,
    grid_studies.GRID_FALLS,
    plan_path_study.PLAN_PATH,
    plan_path_study.PLAN_PATH_BOXES,
    plan_path_study.PLAN_PATH_CREDIT,
    hanabi_study.HANABI,
    math_studies.TOY_MATH,
    replay_studies.RELAY,
    replay_studies.LOUD_RELAY,
    studies.MBPP,
)
STUDIES = {study.name: study for study in _ALL}
FAMILIES = {
    "toy-primary": PRIMARY,
    "toy-second-turn": second_turn_study.COMPARISONS,
    "grid-telling": (Comparison("told at chance: pair, less pair told nothing", JOINT, "chance_plain", "reward"),),
    **replay_studies.REPLAY_COMPARISONS,
    "plan-path": plan_path_study.COMPARISONS,
    "plan-path-boxes": plan_path_study.COMPARISONS,
    "plan-path-credit": plan_path_study.CREDIT_COMPARISONS,
}
"""Primary comparisons by study."""
