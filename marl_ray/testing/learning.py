"""Checks of losses, optimizers and critics."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.core.batch import CriticSample, Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.models.names import resolve_model
from marl_ray.testing.values import require

if TYPE_CHECKING:
    from torch import Tensor

    from marl_ray.learning.critic import Critic
    from marl_ray.learning.losses.policy_loss import PolicyLoss

STEPS = 3
"""Number of steps of an optimizer before and after its state is stored."""


def check_optimizer(optimizer: Callable[[list[dict[str, Any]], OptimizerConfig], Any]) -> None:
    """Check an optimizer, a function from parameter groups and settings to a `torch.optim.Optimizer`."""
    import torch

    settings = OptimizerConfig(weight_decay=0.0)

    def make() -> tuple[list[Tensor], Any]:
        torch.manual_seed(0)
        trained = torch.nn.Parameter(torch.randn(8, 4))
        frozen = torch.nn.Parameter(torch.randn(8, 4))
        groups = [{"params": [trained], "lr": 0.01}, {"params": [frozen], "lr": 0.0}]
        return [trained, frozen], optimizer(groups, settings)

    def step(weights: Sequence[Tensor], made: Any, number: int) -> None:
        for weight in weights:
            weight.grad = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        made.step()

    weights, first = make()
    require(isinstance(first, torch.optim.Optimizer), f"it must return a torch.optim.Optimizer, not {first!r}")
    require([group["lr"] for group in first.param_groups] == [0.01, 0.0], "each group must keep its own lr")
    before = [weight.detach().clone() for weight in weights]
    for number in range(STEPS):
        step(weights, first, number)
    require(bool(torch.isfinite(weights[0]).all()), "weights must be finite after a step")
    require(not torch.equal(weights[0], before[0]), "a step with a gradient must change the weights")
    require(torch.equal(weights[1], before[1]), "a group with lr 0 must keep its weights")
    # A resumed optimizer with the same weights must take the same steps.
    weights_resumed, resumed = make()
    with torch.no_grad():
        for target, weight in zip(weights_resumed, weights, strict=True):
            target.copy_(weight)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(STEPS, 2 * STEPS):
        step(weights, first, number)
        step(weights_resumed, resumed, number)
    same = all(map(torch.equal, weights, weights_resumed))
    require(same, "state_dict must hold the whole state: after load_state_dict the next steps differ")


def check_loss(loss: Callable[[OptimizerConfig], PolicyLoss]) -> None:
    """Check a loss, a subclass of `PolicyLoss`, on tokens of three completions."""
    import torch

    from marl_ray.learning.losses.policy_loss import LossTokens

    generator = torch.Generator().manual_seed(0)
    owners = torch.tensor([0] * 4 + [1] * 3 + [2] * 5)
    old = -3 * torch.rand(len(owners), generator=generator)
    shift = 0.2 * torch.randn(len(owners), generator=generator)
    behaviour = old + 0.1 * torch.randn(len(owners), generator=generator)
    weights = torch.tensor([1.0] * 4 + [-0.5] * 3 + [0.0] * 5)
    inputs = (old, behaviour, weights)

    def run(part: slice) -> tuple[float, Tensor]:
        """Return the loss of a micro-batch, and its gradient in all log-probabilities."""
        function = loss(OptimizerConfig(clip_low=0.2, clip_high=0.3))
        logprobs = (old + shift).requires_grad_()
        function.start_tokens(LossTokens(logprobs.detach(), old, behaviour, weights, owners))
        owners_in_part = owners[part] - owners[part].min()
        copies = [tensor.clone() for tensor in inputs]
        old_copy, behaviour_copy, weights_copy = copies
        tokens: LossTokens = LossTokens(
            logprobs[part], old_copy[part], behaviour_copy[part], weights_copy[part], owners_in_part
        )
        total, ratios = function.token_loss(tokens)
        require(all(map(torch.equal, copies, inputs)), "token_loss must not modify its input")
        is_scalar = isinstance(total, torch.Tensor) and total.shape == ()
        require(is_scalar, f"token_loss must return the sum of the tokens' losses, a scalar tensor, not {total!r}")
        require(total.requires_grad, "the loss must have a gradient in tokens.logprobs")
        if ratios is not None:
            shapes = {tuple(values.shape) for values in ratios}
            fits = shapes == {tuple(owners_in_part.shape)}
            require(fits, f"ratios must have one value per token, not the shapes {shapes}")
        (gradient,) = torch.autograd.grad(total, logprobs)
        return float(total), gradient

    total, gradient = run(slice(None))
    require(math.isfinite(total) and bool(torch.isfinite(gradient).all()), "loss and gradient must be finite")
    require(bool((gradient[weights == 0] == 0).all()), "a token of weight 0 must have no gradient")
    lowers = bool((gradient * weights <= 0).all())
    require(lowers, "a step must not make a token with a positive weight less likely, or one with a negative one more")
    require(bool((gradient != 0).any()), "no token has a gradient")
    # One micro-batch per completion.
    sum_of_losses = 0.0
    sum_of_gradients = torch.zeros(len(owners))
    for part in (slice(0, 4), slice(4, 7), slice(7, 12)):
        part_loss, part_gradient = run(part)
        sum_of_losses += part_loss
        sum_of_gradients += part_gradient
    adds_up = math.isclose(total, sum_of_losses, rel_tol=1e-4, abs_tol=1e-5)
    adds_up = adds_up and torch.allclose(gradient, sum_of_gradients, atol=1e-5)
    require(adds_up, "the loss of several completions must be the sum of their losses, in any micro-batches")


def check_critic(critic: Callable[..., Critic | None]) -> None:
    """Check a critic, a function with the arguments of `make_critic`, on the bundled model `bundled:toy-base`."""
    import torch

    from marl_ray.learning.policy_model import LogprobModel, load_policy

    path = resolve_model("bundled:toy-base")
    device = torch.device("cpu")
    agent = AgentConfig(name="bundled:toy-base", learning_rate=1e-3)
    credit = CreditConfig(critic="iac")

    def load_body() -> Any:
        return load_policy(path, False, device)

    def make() -> Any:
        policy: LogprobModel = LogprobModel(load_body(), "padded", 1.0, torch.float32)
        made = critic(policy, agent, credit, OptimizerConfig(critic_learning_rate=1e-2), 10, load_body)
        require(made is not None, "the function must return a critic, not None")
        return made

    groups = [_critic_group(number) for number in range(3)]
    trained = make()
    weighted, estimates = trained.credit_groups(groups)
    weights = [group.weights for group in weighted]
    sizes = [len(group_weights) for group_weights in weights]
    require(sizes == [2] * 3, f"credit_groups must return each group with one weight per completion, not {sizes}")
    for group_weights in weights:
        require(all(map(math.isfinite, group_weights)), "the weights of credit_groups must be finite")
    if not trained.needs_whole_batch:
        for group, group_weights in zip(groups, weights, strict=True):
            ((alone,), _) = trained.credit_groups([group])
            same = alone.weights == group_weights
            require(same, "a group's weights must not depend on the other groups of the call")
    losses = []
    for _ in range(STEPS):
        losses.append(trained.backward(trained.credit_groups(groups)[1]))
        require(math.isfinite(losses[-1]) and math.isfinite(trained.clip()), "loss and gradient must be finite")
        trained.step()
    require(losses[-1] < losses[0], f"the loss on the same targets must fall while the critic learns, not {losses}")
    resumed = make()
    resumed.load(trained.state())
    values = [estimate.value for estimate in trained.credit_groups(groups)[1]]
    values_resumed = [estimate.value for estimate in resumed.credit_groups(groups)[1]]
    require(values == values_resumed, "state must hold everything that `load` needs: the values differ")
    require(bool(trained.modules()) and len(estimates) == len(groups), "modules and credit_groups must not be empty")


def _critic_group(number: int) -> Group:
    """Return a group of two completions with rewards and without successors."""
    prompt = tuple(range(5, 9 + number))
    completions = tuple(Completion((6, 7, 8 + index), "", (-1.0,) * 3, "stop", ((0, 3),)) for index in range(2))
    rewards = (1.0 + number, 2.0)
    sample = CriticSample(prompt, rewards, ((), ()))
    return Group(0, sibling_calls(prompt, completions), rewards, (0.5, 0.5), critic_sample=sample)
