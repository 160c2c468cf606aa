"""Conformance checks for plug-ins of training: losses, critics, optimizers, joint modes, handoffs, samplers and sinks.

`marl_ray.contracts` exports them beside the checks of environments and their parts.
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.config import AgentConfig, Config, CreditConfig, OptimizerConfig, from_tree
from marl_ray.core.batch import CriticSample, Group
from marl_ray.core.episode import Completion, Task, sibling_calls
from marl_ray.models.names import resolve_model
from marl_ray.telemetry.sinks import Sink

if TYPE_CHECKING:
    from torch import Tensor

    from marl_ray.data.sampling import Sampler
    from marl_ray.learning.critic import Critic
    from marl_ray.learning.losses.policy_loss import LossTokens, PolicyLoss
    from marl_ray.rollout.turn import Handoff, JointMode

EPOCHS = 3
"""Number of epochs in which a sampler is checked."""
STEPS = 3
"""Number of steps of an optimizer before and after its state is stored."""


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def check_joint_mode(mode: JointMode) -> None:
    """Check a joint mode, a function from the size of each agent's group to joint actions."""
    for sizes in ([1], [4], [3, 3], [2, 2, 2]):
        joint = mode(list(sizes))
        require(joint == mode(list(sizes)), f"a joint mode must be a function of the sizes: {sizes} has two results")
        for indices in joint:
            fits = isinstance(indices, tuple) and len(indices) == len(sizes)
            require(fits, f"a joint action must be a tuple of {len(sizes)} indices, not {indices!r}")
            within = all(index in range(size) for index, size in zip(indices, sizes, strict=True))
            require(within, f"the joint action {indices} has an index outside the groups of sizes {sizes}")
        require(len(set(joint)) == len(joint), f"two joint actions are the same: {joint}")
        for agent, size in enumerate(sizes):
            missing = set(range(size)) - {indices[agent] for indices in joint}
            require(not missing, f"completion {missing} of agent {agent} is in no joint action and would earn nothing")


def check_handoff(handoff: Handoff) -> None:
    """Check a handoff, a function from rewards and a random stream to the one joint action that is continued."""
    for rewards in ([0.0], [1.0, 1.0], [3.0, -1.0, 2.0, 2.0]):
        given = list(rewards)
        chosen = handoff(given, random.Random(1))
        require(given == rewards, "a handoff must not modify the rewards")
        single = isinstance(chosen, list) and len(chosen) == 1 and chosen[0] in range(len(rewards))
        require(single, f"a handoff must return a list of one index below {len(rewards)}, not {chosen!r}")
        again = handoff(given, random.Random(1))
        require(chosen == again, "a handoff must depend on the rewards and the random stream only")


def check_sampler(sampler: Sampler, tasks: Sequence[Task]) -> None:
    """Check a sampler, a function from tasks, epoch and random stream to the order of the tasks in the epoch."""
    for epoch in range(EPOCHS):
        order = list(sampler(tasks, epoch, random.Random(epoch)))
        complete = sorted(order) == list(range(len(tasks)))
        require(complete, f"epoch {epoch} must have each index below {len(tasks)} once, not {order[:20]}")
        again = list(sampler(tasks, epoch, random.Random(epoch)))
        require(order == again, "a sampler must depend on its arguments only, or a resumed run would repeat tasks")


def check_sink(sink: Callable[[Config, Path], Sink]) -> None:
    """Check a sink with rows and episode records of two processes of a run, in a folder that is deleted afterwards."""
    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {}}, "magrpo")
    record = {"task": "t", "stops": [], "nodes": []}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "runs" / "one"
        run_dir.mkdir(parents=True)
        for process in range(2):
            opened = sink(config, run_dir)
            require(isinstance(opened, Sink), f"a sink must be a marl_ray.telemetry.sinks.Sink, not {opened!r}")
            sent = opened.sent_step
            require(sent is None or type(sent) is int, f"sent_step must be None or a whole number, not {sent!r}")
            step = 2 * process
            opened.row({"step": step, "env_steps": 4, "eval/turn_1/reward_mean": 0.5, "eval/episodes": 1}, "eval")
            opened.episodes(step, "eval", [record])
            rows = ({"step": step + 1, "env_steps": 8, "agent_0/loss": value, "note": "text"} for value in (0.5, None))
            for row in rows:  # a number that is not finite is null in metrics.jsonl
                opened.row(row, "")  # type: ignore[arg-type]
            opened.episodes(step + 1, "train", [record, record])
            opened.close()


def check_optimizer(optimizer: Callable[[list[dict[str, Any]], OptimizerConfig], Any]) -> None:
    """Check an optimizer, a function from parameter groups and settings to a `torch.optim.Optimizer`."""
    import torch

    settings = OptimizerConfig(weight_decay=0.0)

    def make() -> tuple[list[Tensor], Any]:
        torch.manual_seed(0)
        trained, frozen = (torch.nn.Parameter(torch.randn(8, 4)) for _ in range(2))
        groups = [{"params": [trained], "lr": 0.01}, {"params": [frozen], "lr": 0.0}]
        return [trained, frozen], optimizer(groups, settings)

    def step(weights: Sequence[Tensor], own: Any, number: int) -> None:
        for weight in weights:
            weight.grad = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        own.step()

    weights, own = make()
    require(isinstance(own, torch.optim.Optimizer), f"it must return a torch.optim.Optimizer, not {own!r}")
    require([group["lr"] for group in own.param_groups] == [0.01, 0.0], "each group must keep its own lr")
    before = [weight.detach().clone() for weight in weights]
    for number in range(STEPS):
        step(weights, own, number)
    require(bool(torch.isfinite(weights[0]).all()), "weights must be finite after a step")
    require(not torch.equal(weights[0], before[0]), "a step with a gradient must change the weights")
    require(torch.equal(weights[1], before[1]), "a group with lr 0 must keep its weights")
    copies, other = make()
    with torch.no_grad():
        for target, weight in zip(copies, weights, strict=True):
            target.copy_(weight)
    other.load_state_dict(copy.deepcopy(own.state_dict()))
    for number in range(STEPS, 2 * STEPS):
        step(weights, own, number)
        step(copies, other, number)
    same = all(torch.equal(one, two) for one, two in zip(weights, copies, strict=True))
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

    def run(part: slice) -> tuple[float, Tensor]:
        function = loss(OptimizerConfig(clip_low=0.2, clip_high=0.3))
        logprobs = (old + shift).requires_grad_()
        function.start_tokens(LossTokens(logprobs.detach(), old, behaviour, weights, owners))
        own = owners[part] - owners[part].min()
        given = [tensor.clone() for tensor in (old, behaviour, weights)]
        tokens: LossTokens = LossTokens(logprobs[part], given[0][part], given[1][part], given[2][part], own)
        total, ratios = function.token_loss(tokens)
        intact = all(map(torch.equal, given, (old, behaviour, weights)))
        require(intact, "token_loss must not modify its input")
        is_scalar = isinstance(total, torch.Tensor) and total.shape == ()
        require(is_scalar, f"token_loss must return the sum of the tokens' losses, a scalar tensor, not {total!r}")
        require(total.requires_grad, "the loss must have a gradient in tokens.logprobs")
        if ratios is not None:
            shapes = {tuple(values.shape) for values in ratios}
            require(shapes == {tuple(own.shape)}, f"ratios must have one value per token, not the shapes {shapes}")
        (gradient,) = torch.autograd.grad(total, logprobs)
        return float(total), gradient

    total, gradient = run(slice(None))
    require(math.isfinite(total) and bool(torch.isfinite(gradient).all()), "loss and gradient must be finite")
    require(bool((gradient[weights == 0] == 0).all()), "a token of weight 0 must have no gradient")
    lowers = bool((gradient * weights <= 0).all())
    require(lowers, "a step must not make a token with a positive weight less likely, or one with a negative one more")
    require(bool((gradient != 0).any()), "no token has a gradient")
    parts = [run(slice(0, 4)), run(slice(4, 7)), run(slice(7, 12))]
    adds_up = math.isclose(total, sum(value for value, _ in parts), rel_tol=1e-4, abs_tol=1e-5)
    adds_up = adds_up and torch.allclose(gradient, sum((part for _, part in parts), torch.zeros(())), atol=1e-5)
    require(adds_up, "the loss of several completions must be the sum of their losses, in any micro-batches")


def check_critic(critic: Callable[..., Critic | None]) -> None:
    """Check a critic, a function with the arguments of `make_critic`, on the bundled model `bundled:toy-base`."""
    import torch

    from marl_ray.learning.policy_model import LogprobModel, load_policy

    path, device = resolve_model("bundled:toy-base"), torch.device("cpu")
    agent, credit = AgentConfig(name="bundled:toy-base", learning_rate=1e-3), CreditConfig(critic="iac")

    def load_body() -> Any:
        return load_policy(path, False, device)

    def make() -> Any:
        policy: LogprobModel = LogprobModel(load_body(), "padded", 1.0, torch.float32)
        own = critic(policy, agent, credit, OptimizerConfig(critic_learning_rate=1e-2), 10, load_body)
        require(own is not None, "the function must return a critic, not None")
        return own

    groups = [_critic_group(number) for number in range(3)]
    own = make()
    weighted, estimates = own.credit_groups(groups)
    sizes = [len(group.weights) for group in weighted]
    require(sizes == [2] * 3, f"credit_groups must return each group with one weight per completion, not {sizes}")
    finite = all(map(math.isfinite, (weight for group in weighted for weight in group.weights)))
    require(finite, "the weights of credit_groups must be finite")
    if not own.needs_whole_batch:
        apart = [own.credit_groups([group]) for group in groups]
        same = [part[0][0].weights for part in apart] == [group.weights for group in weighted]
        require(same, "a group's weights must not depend on the other groups of the call")
    losses = []
    for _ in range(STEPS):
        losses.append(own.backward(own.credit_groups(groups)[1]))
        require(math.isfinite(losses[-1]) and math.isfinite(own.clip()), "loss and gradient must be finite")
        own.step()
    require(losses[-1] < losses[0], f"the loss on the same targets must fall while the critic learns, not {losses}")
    other = make()
    other.load(own.state())
    values = [[estimate.value for estimate in one.credit_groups(groups)[1]] for one in (own, other)]
    require(values[0] == values[1], "state must hold everything that `load` needs: the values differ")
    require(bool(own.modules()) and len(estimates) == len(groups), "modules and credit_groups must not be empty")


def _critic_group(number: int) -> Group:
    """Return a group of two completions with rewards and without successors."""
    prompt = tuple(range(5, 9 + number))
    completions = tuple(Completion((6, 7, 8 + index), "", (-1.0,) * 3, "stop", ((0, 3),)) for index in range(2))
    rewards = (1.0 + number, 2.0)
    sample = CriticSample(prompt, rewards, ((), ()))
    return Group(0, sibling_calls(prompt, completions), rewards, (0.5, 0.5), critic_sample=sample)
