"""The rewards that estimators compare with the ones of a node's joint actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from statistics import fmean

from marl_ray.config import AgentConfig
from marl_ray.core.episode import Completion, GreedySample, JointAction, Node, Texts
from marl_ray.credit.requirements import estimator_requirements
from marl_ray.rollout.coalitions import coalition_texts, counterfactual_texts, shapley_value
from marl_ray.rollout.unscored import NoVerdict

RewardJoint = Callable[[Sequence[Texts]], Awaitable[dict[Texts, JointAction]]]
"""Returns joint actions with their rewards, by their texts. Raises NoVerdict if one has no reward."""


class Baselines:
    """The joint actions that the agents' estimators need beside the sampled ones."""

    def __init__(self, agents: Sequence[AgentConfig], counterfactual: str) -> None:
        self.counterfactual = counterfactual
        self.greedy = False
        """Whether nodes have a greedy joint sample."""
        self.counterfactual_agents: list[int] = []
        self.coalition_agents: list[int] = []
        for agent, settings in enumerate(agents):
            needs = estimator_requirements(settings.estimator)
            self.greedy |= needs.greedy_sample
            if needs.counterfactual_sample:
                self.counterfactual_agents.append(agent)
            if needs.coalition_samples:
                self.coalition_agents.append(agent)


async def add_baselines(
    node: Node, greedy: Sequence[Completion], baselines: Baselines, reward_joint: RewardJoint
) -> None:
    """Add the rewards of the joint actions that the estimators need to a node. Raises NoVerdict.

    `greedy` are the agents' greedy completions; none if no estimator needs them.
    """
    counterfactual: dict[int, list[list[Texts]]] = {}
    for agent in baselines.counterfactual_agents:
        counterfactual[agent] = counterfactual_texts(node, agent, baselines.counterfactual)
        if not all(counterfactual[agent]):
            raise NoVerdict("unscored", "a completion has no sibling with a reward that could replace it")
    coalitions = coalition_texts(node) if baselines.coalition_agents else []
    greedy_texts = tuple(completion.text for completion in greedy)

    # Equal joint actions are executed once: in joint mode cross many are equal. A dictionary keeps their order.
    joint: dict[Texts, None] = {}
    for of_actions in counterfactual.values():
        joint |= dict.fromkeys(chain.from_iterable(of_actions))
    for of_coalition in coalitions:
        joint |= dict.fromkeys(of_coalition.values())
    if greedy:
        joint[greedy_texts] = None
    if not joint:
        return
    rewarded = await reward_joint(list(joint))

    node.recombined = rewarded
    for agent, of_actions in counterfactual.items():
        node.counterfactuals[agent] = []
        for replaced in of_actions:
            node.counterfactuals[agent].append(fmean(rewarded[texts].rewards[agent] for texts in replaced))
    for agent in baselines.coalition_agents:
        node.counterfactuals[agent] = []
        for action, of_coalition in zip(node.joint_actions, coalitions, strict=True):
            values = {present: rewarded[texts].rewards[agent] for present, texts in of_coalition.items()}
            # The reward less this number is the agent's Shapley value.
            node.counterfactuals[agent].append(action.rewards[agent] - shapley_value(agent, values))
    if greedy:
        action = rewarded[greedy_texts]
        node.greedy = GreedySample(tuple(greedy), action.reward, action.rewards)
