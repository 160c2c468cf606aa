"""The table of rules: every text can be written, and names settings that exist."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from marl_ray.config import rules
from marl_ray.config.keys import agent_keys, settings
from tests.factories import quickstart_config

SETTING = re.compile(r"(?:\{section\}|[a-z_]+)(?:\.[a-z_0-9]+)+")


def test_all_texts_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [replace(rule, is_broken=lambda config: True) for rule in rules.RULES]
    of_agents = [replace(rule, is_broken=lambda config, agent: True) for rule in rules.AGENT_RULES]
    config = quickstart_config()
    monkeypatch.setattr(rules, "RULES", broken)
    monkeypatch.setattr(rules, "AGENT_RULES", of_agents)
    texts = list(rules.broken_rules(config))
    assert len(texts) == len(broken) + config.num_agents * len(of_agents)
    assert not any("{" in text or "\n" in text for text in texts)


@pytest.mark.parametrize("rule", [*rules.RULES, *rules.AGENT_RULES], ids=lambda rule: rule.text[:40])
def test_a_text_names_settings_that_exist(rule: rules.RunRule | rules.AgentRule) -> None:
    known = set(settings("magrpo")) | {f"resources.{part}" for part in ("learner", "generator")}
    text = re.sub(r"\{(?:config|run|agent|key)[^}]*\}", "", rule.text).replace("{section}", "magrpo")
    for name in SETTING.findall(text):
        assert name in known, name
    for field in re.findall(r"\{key\[([^]]*)\]\}", rule.text):
        assert field in agent_keys("magrpo") or f"resources.{field}" in agent_keys("magrpo"), field
