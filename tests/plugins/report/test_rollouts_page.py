"""The tabs of rollouts and cooperation, and what changed, in a real browser."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.episode import Node
from marl_ray.plugins.report.live_report import serve_report
from marl_ray.plugins.report.run_data import run_data
from marl_ray.plugins.report.run_page import render_run_data
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from tests.browser import PHONE, browser_page, fits_the_window
from tests.factories import make_episode, make_node
from tests.plugins.report.report_runs import CONFIG, HOSTILE, add_step, write_run

pytestmark = pytest.mark.slow


def add(run: RunFolder, step: int, node: Node, kind: str = "train", task: str = "toy/1", **keys: Any) -> None:
    record = {"step": step, "kind": kind, **episode_record(make_episode(node)), "task": task, **keys}
    with run.episodes.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def make_run(folder: Path) -> RunFolder:
    """Write a run with two evaluations of one task and five training episodes of two turns."""
    run = RunFolder(write_run(folder))
    run.episodes.unlink()
    add(run, 0, make_node(0, [0.0]), "eval", "held", roles=["writer", "checker"])
    for step in range(1, 6):
        second = make_node(1, [float(step), 0.5])
        add(run, step, make_node(0, [1.0, 3.0, 2.0], {1: second}), task=f"toy/{step % 2}")
    add(run, 5, make_node(0, [4.0]), "eval", "held", roles=["writer", "checker"])
    return run


@contextmanager
def opened(run: RunFolder, fragment: str, **options: Any) -> Iterator[Any]:
    """Open the written page of a run. Its console stays empty, and it requests nothing else."""
    file = run.path / "page.html"
    file.write_text(render_run_data(run_data(run)), encoding="utf-8")
    with browser_page(f"file://{file}{fragment}", **options) as (page, requests, messages):
        page.wait_for_selector("body[data-ready]")
        yield page
        assert messages == [], messages
        assert [request for request in requests if not request.startswith("file://")] == []


def shown(page: Any) -> tuple[str, str]:
    """Return the selected episode of the list, and the title of the episode beside it."""
    chosen = page.inner_text(".rollout-list a[aria-current] .task")
    return chosen, page.locator("article.episode h2").evaluate("(title) => title.firstChild.textContent.trim()")


def test_filters_keys_and_links_choose_episodes(tmp_path: Path) -> None:
    with opened(make_run(tmp_path / "run"), "#rollouts") as page:
        assert page.locator(".rollout-list li").count() == 7
        page.select_option("[name=kind]", "train")
        page.fill("[name=task]", "toy/1")
        assert page.inner_text("output") == "3 of 7"
        page.fill("[name=first]", "2")
        assert page.inner_text("output") == "2 of 7"
        page.fill("[name=first]", "")
        page.fill("[name=task]", "")
        page.fill("[name=low]", "2.5")  # the mean of 5 and 0.5
        assert page.inner_text("output") == "1 of 7"
        page.fill("[name=low]", "")
        page.fill("[name=words]", "ANSWER 1.0")
        assert page.inner_text("output") == "5 of 7", "held-out episodes have one turn"
        page.fill("[name=words]", "")
        page.select_option("[name=sort]", "earliest")
        page.locator(".rollout-list a").first.click()
        assert shown(page)[0] == "toy/1"
        page.keyboard.press("j")
        assert shown(page) == ("toy/0", "toy/0")
        address = page.url
        assert "#rollouts/" in address
        page.keyboard.press("ArrowDown")
        page.keyboard.press("k")
        assert page.url == address
        page.reload()
        page.wait_for_selector("article.episode h2")
        assert shown(page)[1] == "toy/0"
        assert "step 2" in page.inner_text("article.episode header")
        same_task = page.get_by_role("navigation", name="The same task over steps").locator("a")
        assert same_task.all_inner_texts() == ["step 2\n1.25", "step 4\n2.25"]
        page.goto(f"{page.url.partition('#')[0]}#rollouts/0123456789ab")
        assert "is not on this page" in page.inner_text("article.episode")


def test_the_reward_in_the_header_is_the_number_of_the_turn(tmp_path: Path) -> None:
    with opened(make_run(tmp_path / "run"), "#rollouts") as page:
        page.select_option("[name=sort]", "best")
        page.select_option("[name=kind]", "train")
        page.locator(".rollout-list a").first.click()
        assert "last turn: mean reward 2.75 over 2 samples, 0.50 to 5.00" in page.inner_text("article.episode header")
        first, second = page.locator("section.turn h3").all_inner_texts()
        assert first == "Turn 1 mean reward 2.00 over 3 samples, 1.00 to 3.00"
        assert second == "Turn 2 mean reward 2.75 over 2 samples, 0.50 to 5.00, continues sample 2"


def test_means_are_rounded_as_in_the_list(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    # A plain sum of these numbers is a little below 19.66, whose eighth ends with the digit 5.
    add(run, 9, make_node(0, [3.33, 3.17, 3.33, 1.84, 2.94, 2.59, 0.97, 1.49]))
    with opened(run, "#rollouts") as page:
        page.locator(".rollout-list a").first.click()
        (listed,) = page.locator(".rollout-list a[aria-current] .reward").all_inner_texts()
        assert f"mean reward {listed} over 8 samples" in page.inner_text("section.turn h3")
        assert f"mean reward {listed} over 8 samples" in page.inner_text("article.episode header")


def test_a_joint_action_of_the_strip_shows_its_answers(tmp_path: Path) -> None:
    with opened(make_run(tmp_path / "run"), "#rollouts") as page:
        page.select_option("[name=kind]", "train")
        page.locator(".rollout-list a").first.click()
        turn = page.locator("section.turn").first
        assert turn.locator("pre.answer").all_inner_texts() == ["answer 0.0.1", "answer 0.1.1"], "the continued one"
        turn.locator("[data-action='2']").click()
        assert turn.locator("pre.answer").all_inner_texts() == ["answer 0.0.2", "answer 0.1.2"]
        page.keyboard.press("ArrowLeft")
        assert turn.locator("p.shown").inner_text() == "sample 2 of 3: reward 3.00"
        assert turn.locator("[data-action='1']").evaluate("(cell) => cell === document.activeElement")
        colours = turn.locator("[data-action]").evaluate_all("(cells) => cells.map((cell) => cell.style.background)")
        assert ["--below" in colours[0], "--above" in colours[1], colours[2]] == [True, True, "var(--panel)"]
        removed, added = page.locator("section.turn").nth(1).locator("pre.diff").first.locator("span[class]").all()[::3]
        assert (removed.get_attribute("class"), added.get_attribute("class")) == ("removed", "added")


def test_a_tree_opens_each_of_its_nodes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    children = {0: make_node(1, [3.0, 4.0], agents=1), 1: make_node(1, [7.0, 8.0], agents=1)}
    add(run, 9, make_node(0, [1.0, 2.0], children, agents=1))
    with opened(run, "#rollouts") as page:
        page.locator(".rollout-list a").first.click()
        assert "mean reward 3.50" in page.locator("section.turn").nth(1).inner_text()
        page.locator("section.turn").first.locator("[data-action='1']").click()
        assert "mean reward 7.50" in page.locator("section.turn").nth(1).inner_text()
        page.locator(".tree summary").click()
        page.get_by_role("button", name="turn 2 after sample 1").click()
        assert "mean reward 3.50" in page.locator("section.turn").nth(1).inner_text()


def test_what_changed_has_the_roles_and_both_times(tmp_path: Path) -> None:
    with opened(make_run(tmp_path / "run"), "#overview") as page:
        panel = page.get_by_role("region", name="What changed")
        assert "Example 1 of 1 recorded (of 25 held-out tasks)" in panel.inner_text()
        assert "held: reward of the last turn 0.00 → 4.00" in panel.inner_text()
        assert panel.locator(".before-after .role").all_inner_texts() == ["writer", "checker"] * 2
        assert [title.partition("\n")[0] for title in panel.locator("h4").all_inner_texts()] == [
            "Turn 1: reward 0.00",
            "Turn 1: reward 4.00",
        ]


def test_the_matrix_has_the_pairs_that_were_played(tmp_path: Path) -> None:
    with opened(make_run(tmp_path / "run"), "#cooperation") as page:
        cells = page.locator(".matrix button")
        assert cells.all_inner_texts() == ["1.00", "3.00", "2.00"]
        assert page.locator(".matrix .absent").count() == 6
        cells.nth(1).click()
        answers = page.locator("section[aria-label='Rewards of pairs of answers'] pre.answer").all_inner_texts()
        assert answers == ["answer 0.0.1", "answer 0.1.1"]


def test_equal_rewards_are_named_and_the_matrix_opens_on_different_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add(run, 9, make_node(0, [4.0, 4.0]), task="equal")
    with opened(run, "#rollouts") as page:
        page.locator(".rollout-list a").first.click()
        turn = page.locator("section.turn").first
        assert "mean reward 4.00 over 2 samples, all equal" in turn.inner_text()
        assert "all 2 equal" in turn.inner_text()
        assert "no learning signal" not in turn.inner_text(), "the run has no batch log"
        assert page.get_by_text("below the group's mean reward").count() == 0
        page.locator("#tabs a", has_text="Cooperation").click()
        episode = page.locator("select[aria-label=Episode]")
        assert "step 5" in episode.evaluate("(select) => select.selectedOptions[0].textContent")


def test_unchanged_answers_have_no_marks_and_feedback_names_its_tests(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    child = make_node(1, [1.0])
    add(run, 9, make_node(0, [0.5], {0: child}), task="same")
    lines = run.episodes.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[-1])
    first, second = record["nodes"]
    second["responses"][0] = first["responses"][0]
    test = {"status": "pass", "error_type": None, "message": None, "source": "assert True"}
    first["joint_actions"][0]["report"] = {"passed": 3, "total": 3, "tests": [test] * 3}
    run.episodes.write_text("\n".join([*lines[:-1], json.dumps(record)]) + "\n", encoding="utf-8")
    run.config.write_text(CONFIG, encoding="utf-8")
    with opened(run, "#rollouts") as page:
        page.locator(".rollout-list a").first.click()
        turn = page.locator("section.turn").nth(1)
        assert turn.locator(".card.agent").first.locator("pre.diff").count() == 0
        assert turn.locator(".card.agent").nth(1).locator("pre.diff").count() == 1
        assert turn.get_by_text("Feedback is about 1 of the 3 tests.").count() == 2


def test_the_flow_of_a_turn_adds_up_to_the_share_solved(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_step(
        run, 9, **{"turn_1/all_passed": 0.9, "turn_2/all_passed": 0.6, "turn_2/keep_rate": 0.7, "turn_2/fix_rate": 0.2}
    )
    run.config.write_text(CONFIG, encoding="utf-8")
    with opened(run, "#cooperation") as page:
        words = page.inner_text(".flow-row .words")
        # 0.8 of the continued answers were right: 0.8 * 0.7 + 0.2 * 0.2 = 0.6.
        assert words == "right → right 56 %, wrong → right 4 %, right → wrong 24 %, wrong → wrong 16 %"


def test_filters_are_folded_on_a_phone(tmp_path: Path) -> None:
    with opened(make_run(tmp_path / "run"), "#rollouts", size=PHONE) as page:
        assert not page.locator("[name=task]").is_visible()
        page.get_by_text("Filters").click()
        assert page.locator("[name=task]").is_visible()
        assert fits_the_window(page)


def test_the_page_says_what_does_not_apply(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run"))
    run.episodes.unlink()
    add(run, 1, make_node(0, [1.0], agents=1))
    with opened(run, "#cooperation") as page:
        text = page.inner_text("#tab-cooperation")
        assert "One agent: pairs of answers, contributions and agreement do not apply." in text
        assert "Not applicable: the agents answer once." in text
        page.locator("#tabs a", has_text="Overview").click()
        changed = page.get_by_role("region", name="What changed").inner_text()
        assert "The run has recorded no held-out task; this is its latest training task." in changed


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run", HOSTILE))
    for fragment in ("#rollouts", "#cooperation", "#overview"):
        with opened(run, fragment, size=PHONE) as page:
            page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert "owned" not in page.title()
            assert page.locator("img, iframe, #main script").count() == 0
            assert fits_the_window(page)
    with opened(run, "#rollouts") as page:
        page.select_option("[name=sort]", "earliest")
        page.locator(".rollout-list a").first.click()
        assert "\u2400\u241b[31m" in page.inner_text("article.episode").replace(" ", "")
        assert "infra error" in page.inner_text("article.episode .alert")


def test_a_served_page_has_episodes_beyond_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_ray.plugins.report.run_data.run_data.__defaults__", (2000, False))
    run = make_run(tmp_path / "run")
    addresses: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve_report, args=([run], 0, addresses.put), daemon=True).start()
    with browser_page(f"{addresses.get(timeout=60)}#rollouts") as (page, _, messages):
        page.locator(".rollout-list li").nth(6).wait_for()
        kept = page.evaluate("page.run.episodes.episodes.map((episode) => episode.id)")
        assert len(kept) < 7
        other = page.locator(".rollout-list a").evaluate_all("(links) => links.map((link) => link.dataset.id)")
        missing = next(id for id in other if id not in kept)
        page.locator(f"[data-id='{missing}']").click()
        page.wait_for_selector("section.turn pre.answer")
        page.fill("[name=words]", "answer 1.0")
        page.get_by_text("5 of 7").wait_for()
        assert messages == [], messages
