"""Writing tasks: each level by numbers computed by hand, prompts, and the two dataset types."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data import DATASETS, infer_type
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.writing.environment import PaperIntroduction, SummaryAndDetails
from marl_ray.plugins.writing.levels import ARXIV, TLDR, Comparison, compare, level_rewards
from marl_ray.plugins.writing.transitions import transition_kinds
from marl_ray.testing import check_environment

TASK = Task("t", "A post.", {})


def numbers(**changes: object) -> Comparison:
    """Return numbers that earn the full reward of TLDR, except for a kind of transition words, with changes."""
    full = {"words": (10, 20), "length_ratio": 2.0, "unique_ratio": 2.0, "kinds": ("cause",) * 13, "jaccard": 0.03}
    return Comparison(**{**full, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, (0.5, 1.0, 0.5, 0.4, 0.6)),
        ({"words": (8, 256)}, (0.5, 1.0, 0.5, 0.4, 0.6)),
        ({"words": (7, 20)}, (0, 0, 0, 0, 0)),
        ({"words": (10, 257)}, (0, 0, 0, 0, 0)),
        ({"length_ratio": 1.35}, (0.5, 0.5, 0.5, 0.4, 0.6)),  # half way from 1.1 to 1.6
        ({"length_ratio": 4.1}, (0.5, 0.5, 0.5, 0.4, 0.6)),  # half way from 3.2 to 5.0
        ({"length_ratio": 1.0}, (0.5, 0, 0, 0, 0)),
        ({"length_ratio": 5.1}, (0.5, 0, 0, 0, 0)),
        ({"unique_ratio": 1.65}, (0.5, 1.0, 0.25, 0.4, 0.6)),  # half way from 1.3 to 2.0
        ({"unique_ratio": 9.0}, (0.5, 1.0, 0.5, 0.4, 0.6)),
        ({"unique_ratio": 1.2}, (0.5, 1.0, 0, 0, 0)),
        ({"kinds": ()}, (0.5, 1.0, 0.5, 0, 0.6)),
        ({"kinds": ("cause",)}, (0.5, 1.0, 0.5, 0.16, 0.6)),
        ({"kinds": ("cause", "time", "example")}, (0.5, 1.0, 0.5, 0.2, 0.6)),
        ({"jaccard": 0.015}, (0.5, 1.0, 0.5, 0.4, 0.3)),
        ({"jaccard": 0.5}, (0.5, 1.0, 0.5, 0.4, 0.6)),
    ],
)
def test_levels_of_summary_and_details(changes: dict[str, object], levels: tuple[float, ...]) -> None:
    assert tuple(level_rewards(numbers(**changes), TLDR).values()) == pytest.approx(levels)


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, (0.5, 1.0, 0.5, 0.4, 0.6)),
        ({"words": (127, 200)}, (0, 0, 0, 0, 0)),
        ({"length_ratio": 1.05}, (0.5, 0.5, 0.5, 0.4, 0.6)),  # half way from 0.8 to 1.3
        ({"length_ratio": 1.8}, (0.5, 0.5, 0.5, 0.4, 0.6)),  # half way from 1.6 to 2.0
        ({"length_ratio": 0.7}, (0.5, 0, 0, 0, 0)),
        ({"unique_ratio": 0.6}, (0.5, 1.0, 0.25, 0.4, 0.6)),
        ({"unique_ratio": 1.5}, (0.5, 1.0, 0.25, 0.4, 0.6)),
        ({"unique_ratio": 1.8}, (0.5, 1.0, 0, 0, 0)),
        ({"jaccard": 0.115}, (0.5, 1.0, 0.5, 0.4, 0.3)),
    ],
)
def test_levels_of_an_introduction(changes: dict[str, object], levels: tuple[float, ...]) -> None:
    full = {"words": (150, 200), "length_ratio": 1.4, "unique_ratio": 1.0, "jaccard": 0.23}
    assert tuple(level_rewards(numbers(**{**full, **changes}), ARXIV).values()) == pytest.approx(levels)


def test_numbers_of_two_parts() -> None:
    first, second = "The red boat sank.", "However, the boat was red and old, so it sank slowly. It was insured."
    found = compare(first, second, TLDR)
    assert found.words == (4, 14)
    assert found.length_ratio == pytest.approx(len(second) / len(first))
    assert found.unique_ratio == pytest.approx(12 / 4)  # `it` and `was` occur twice
    assert found.kinds == ("cause", "contrast")
    # Without stop words: red, boat, sank; however, boat, red, old, sank, slowly, insured.
    assert found.jaccard == pytest.approx(3 / 7)
    assert compare("Although", "", ARXIV).kinds == ("concession",)
    assert compare("Although", "", TLDR).kinds == ()
    assert compare("", "", TLDR) == Comparison((0, 0), 0.0, 0.0, (), 1.0)


def test_transition_words_count_as_whole_words() -> None:
    assert transition_kinds("The sofa is thin.") == []
    assert transition_kinds("It is so thin.\nIn\n short, thin.") == ["cause", "summary"]


def played(environment: SummaryAndDetails, *answers: str) -> Outcome:
    return environment.outcome(environment.attempt(TASK, answers, last=True), None)


def test_a_single_agent_writes_both_parts_with_a_separator() -> None:
    first = "My flatmate's parrot screams at six and I cannot sleep."
    second = "A parrot wakes its owner's flatmate. Therefore she, who works nights, considers a cover or another flat."
    pair = played(SummaryAndDetails(2), first, second)
    assert pair.reward > 2.0
    assert played(SummaryAndDetails(1), f"{first}\n[PARAGRAPH_SPLIT]\n{second}") == pair
    assert played(SummaryAndDetails(1), first).reward == 0.0
    with pytest.raises(UserError, match="set num_agents to 1 or 2"):
        SummaryAndDetails(3)


def test_feedback() -> None:
    environment = SummaryAndDetails(2)
    attempt = environment.attempt(TASK, ["The red boat sank.", "So it sank."], last=False)
    outcome = environment.outcome(attempt, None)
    assert environment.feedback(attempt, outcome, "level_feedback", 0) == [
        "summary: 4 words (from 8 to 256)",
        "details: 3 words (from 8 to 256)",
        "length ratio: 0.61 (best from 1.6 to 3.2)",
        "ratio of different words: 0.75 (best from 2.0)",
        "kinds of transition words: cause",
        "shared vocabulary: 0.33 (best from 0.03)",
    ]
    assert environment.feedback(attempt, outcome, "passed", 1) == ["Not all levels passed"]


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize(
    ("environment", "name"), [(SummaryAndDetails, "bundled:posts"), (PaperIntroduction, "bundled:abstracts")]
)
def test_the_bundled_texts_are_tasks(environment: type[SummaryAndDetails], name: str, agents: int) -> None:
    tasks = load_tasks(name, "train+eval")
    check_environment(environment(agents), tasks[:2], [["A sentence that is long enough to count."] * agents])
    assert all(40 <= len(task.prompt.split()) <= 120 for task in tasks)


def test_rows_of_the_published_data_sets_are_tasks() -> None:
    assert (infer_type("trl-lib/tldr"), infer_type("OpenMLRL/arXiv_abstract")) == ("tldr", "arxiv")
    assert DATASETS.get("tldr").task({"prompt": "A post.", "completion": " Short."}, 3) == Task(
        "tldr/row 3", "A post.", {}
    )
    assert DATASETS.get("arxiv").task({"abstract_text": "We study."}, 0) == Task("arxiv/row 0", "We study.", {})
