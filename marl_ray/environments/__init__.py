"""Environments: the roles, prompts, rewards and feedback of each kind of task.

`base` defines the protocol, `execution` what environments that run code share, and each folder one environment.
"""

from __future__ import annotations

from marl_ray.plugins import Registry

ENVIRONMENTS = Registry(
    "environment",
    {
        "code_generation": "marl_ray.environments.code_generation:CodeGeneration",
        "code_completion": "marl_ray.environments.code_completion:CodeCompletion",
        "bug_fix": "marl_ray.environments.bug_fix:BugFix",
        "bug_fix_patchers": "marl_ray.environments.bug_fix:BugFixPatchers",
        "solver_tester": "marl_ray.environments.solver_tester:SolverTester",
        "tags": "marl_ray.environments.tags:Tagging",
        "grid": "marl_ray.environments.grid:LetterGrid",
        "grid_private": "marl_ray.environments.grid:PrivateGrid",
        "function_calls": "marl_ray.environments.function_calls:FunctionCalls",
        "word_builder": "marl_ray.environments.builder:WordBuilder",
        "house_builder": "marl_ray.environments.builder:HouseBuilder",
        "travel": "marl_ray.environments.travel:TravelPlanning",
        "centralized": "marl_ray.environments.centralized:Centralized",
        "frozen_partners": "marl_ray.environments.frozen_partners:FrozenPartners",
        "reward_model": "marl_ray.reward_models.environment:LearnedReward",
        "gateway": "marl_ray.gateway.environment:GatewayEnvironment",
        "tool_use": "marl_ray.tool_use.environment:ToolUse",
        "writing_tldr": "marl_ray.environments.writing:SummaryAndDetails",
        "writing_arxiv": "marl_ray.environments.writing:PaperIntroduction",
    },
    needs="from_config",
)
