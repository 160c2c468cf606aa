"""Frozen partners, which stand in for an agent of the team for a part of the reward."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={"environment": {"frozen_partners": "marl_ray.plugins.frozen_partners.environment:FrozenPartners"}},
    sections={"partners": "marl_ray.plugins.frozen_partners.options:PartnersConfig"},
)
