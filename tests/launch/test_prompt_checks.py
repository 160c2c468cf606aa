"""First prompts before a run starts: rendered for the user, with warnings of lengths and of chat templates."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_ray.config import Config
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.launch.prompt_checks import check_prompts_of_agents
from marl_ray.launch.run_checks import check
from marl_ray.toy import BASE_PATH
from marl_ray.trainer.context import RenderedPrompt
from tests.environments.talk import Talk
from tests.factories import ROOT, make_config

PAGE = (ROOT / "docs" / "how-to" / "prompts.md").read_text()
TASK = Task("t", "Go.", {})
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS
DROPPING = TURNS.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
ONE_TURN = "{{ messages[-1].content }}<assistant>"


def chat_model(folder: Path, template: str) -> str:
    """Return a model folder whose tokenizer has this template."""
    shutil.copytree(BASE_PATH, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(template)
    return str(folder / "model")


def rendered(config: Config, through_template: bool = True) -> tuple[RenderedPrompt, ...]:
    environment: Any = Talk(config.num_agents)
    templates = {agent.name: (through_template, "") for agent in config.agents}
    return check_prompts_of_agents(config, environment, [TASK], templates, dry=True)


def test_the_prompt_of_each_agent_is_shown_as_its_model_reads_it(tmp_path: Path) -> None:
    name = chat_model(tmp_path, TURNS)
    agents = [{"system_prompt": "Be brief."}, {}]
    first, second = rendered(make_config(sections={"model": {"name": name, "max_length": 1024}, "agents": agents}))
    assert first.text == "<system>Be brief.<user>Go. You are speaker 0.<assistant>"
    assert second.text == "<user>Go. You are speaker 1.<assistant>"
    assert second.excerpt == f"agent 1: first prompt of task t, {second.tokens} tokens: {second.text!r}"
    long = RenderedPrompt(0, "t", "a" * 100 + "b" * 100, 7)
    assert long.excerpt.endswith(f": '{'a' * 60}' ... '{'b' * 60}'")


def test_a_template_that_cannot_render_the_prompt_is_an_error(tmp_path: Path) -> None:
    model = {"name": chat_model(tmp_path, NO_SYSTEM), "max_length": 1024, "system_prompt": "Be brief."}
    with pytest.raises(
        UserError, match=r"first prompt of agent 0 \(no system role\): change model.system_prompt"
    ) as no:
        rendered(make_config(sections={"model": model}))
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    ("external", "settings", "says"),
    [
        (
            {},
            {"max_new_tokens": 120},
            "1 of 1 measured prompt and magrpo.max_new_tokens 120 exceed model.max_length 128",
        ),
        ({}, {"max_new_tokens": 70, "num_turns": 2}, "up to 2 answers of magrpo.max_new_tokens 70 may exceed"),
        (
            {"composition": "chat"},
            {"max_new_tokens": 40, "num_turns": 3},
            "of magrpo.max_new_tokens 40 with the first prompt may exceed model.max_length 128 in turn 3, which",
        ),
        ({"previous_response": False}, {"max_new_tokens": 70, "num_turns": 2}, ""),
        ({"composition": "chat"}, {"max_new_tokens": 20, "num_turns": 3}, ""),
    ],
)
def test_warnings_of_prompts_and_answers_beyond_max_length(
    caplog: pytest.LogCaptureFixture, external: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    sections = {"model": {"name": str(BASE_PATH), "max_length": 128}, "external": external}
    rendered(make_config(sections=sections, **settings), through_template=False)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (2 if says else 0), "one per agent"
    assert all(says in warning for warning in warnings)


@pytest.mark.parametrize(
    ("template", "warning"), [(TURNS, ""), (DROPPING, "drops the reasoning of earlier answers, and with")]
)
def test_a_template_that_changes_earlier_turns_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str, warning: str
) -> None:
    model = {"name": chat_model(tmp_path, template), "max_length": 1024}
    sections = {"model": model, "external": {"composition": "chat"}}
    rendered(make_config("grpo", sections, num_turns=2))
    assert [warning in record.message for record in caplog.records] == [True] * bool(warning)


def test_a_template_of_a_single_turn_cannot_continue_a_conversation(tmp_path: Path) -> None:
    model = {"name": chat_model(tmp_path, ONE_TURN), "max_length": 1024}
    sections = {"model": model, "external": {"composition": "chat"}}
    with pytest.raises(UserError, match=r"cannot continue a conversation .*: set composition to prompt"):
        rendered(make_config("grpo", sections, num_turns=2))


def test_the_examples_of_the_page_work() -> None:
    code, settings, schemas = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "prompts.md", "exec"), names)
    task = Task("t", "Write add_twice.", {"entry_point": "add_twice", "tests": ()})
    prompt = names["WithExample"](2).first_prompts(task)[1]
    assert [message["role"] for message in prompt] == ["user", "assistant", "user"]
    tree = yaml.safe_load(settings)
    model = {"name": "bundled:toy-base", "max_length": 1024} | tree["model"]
    config = make_config(sections={"model": model, "agents": tree["agents"]}, **tree["magrpo"])
    inputs = check(config, dry=True)
    assert [prompt.text.splitlines()[0] for prompt in inputs.rendered_prompts] == [
        "You write Python functions.",
        "You write the entry point.",
    ]
    agents = yaml.safe_load(schemas)["agents"]
    config = make_config(sections={"model": {"name": "bundled:toy-base", "max_length": 1024}, "agents": agents})
    check(config, dry=True)
    assert [bool(agent.json_schema) for agent in config.agents] == [True, False]
