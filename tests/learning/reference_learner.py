"""An independent implementation of the tiny policy in NumPy and float64, and numerical differentiation of its
losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.learning.builders import HEADS, KEY_HEADS, LAYERS, WIDTH

TEMPERATURE = 0.7
Weights = Mapping[str, np.ndarray]


def weights_of(policy: Any) -> dict[str, np.ndarray]:
    """Return a policy's weights as float64 arrays."""
    return {name: p.detach().double().numpy() for name, p in policy.named_parameters()}


def slopes(
    loss: Callable[[Weights], float], weights: Weights, gradient: Weights, step: float = 1e-5
) -> Iterator[tuple[float, float]]:
    """Yield, in eight random directions, the slope by `gradient` and by numerical differentiation."""
    chance = np.random.default_rng(1)
    for _ in range(8):
        direction = {name: chance.normal(size=w.shape) for name, w in weights.items()}
        ahead, behind = ({name: w + s * direction[name] for name, w in weights.items()} for s in (step, -step))
        expected = sum(float((gradient[name] * direction[name]).sum()) for name in direction)
        yield expected, (loss(ahead) - loss(behind)) / (2 * step)


def numpy_logprobs(weights: Weights, prompt: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Return log pi of each token of one sequence."""
    scores = numpy_hidden(weights, [*prompt, *tokens]) @ weights["lm_head.weight"].T / TEMPERATURE
    scores = scores - scores.max(axis=1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return np.array([logs[len(prompt) - 1 + k, token] for k, token in enumerate(tokens)])


def numpy_value(weights: Weights, state: Sequence[int]) -> float:
    """Return the value of a head whose weights are `head.weight` [1, H] and `head.bias` [1]."""
    return float(weights["head.weight"][0] @ numpy_hidden(weights, state)[-1] + weights["head.bias"][0])


def numpy_hidden(weights: Weights, ids: Sequence[int]) -> np.ndarray:
    """Return the last hidden state at each token, [L, H]."""
    states = weights["model.embed_tokens.weight"][list(ids)]
    for layer in range(LAYERS):
        own = {name.split(f"layers.{layer}.")[1]: w for name, w in weights.items() if f"layers.{layer}." in name}
        states = states + attention(own, rms_norm(states, own["input_layernorm.weight"]))
        inner = rms_norm(states, own["post_attention_layernorm.weight"])
        gate = inner @ own["mlp.gate_proj.weight"].T
        up = inner @ own["mlp.up_proj.weight"].T
        states = states + (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
    return rms_norm(states, weights["model.norm.weight"])


def rms_norm(states: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return states / np.sqrt((states**2).mean(axis=-1, keepdims=True) + 1e-6) * weight


def attention(own: Weights, states: np.ndarray) -> np.ndarray:
    length = len(states)
    angles = np.outer(np.arange(length), 10_000.0 ** -(np.arange(0, WIDTH, 2) / WIDTH))
    angles = np.concatenate([angles, angles], axis=1)

    def head(name: str, number: int) -> np.ndarray:
        return (states @ own[f"self_attn.{name}.weight"].T)[:, number * WIDTH : (number + 1) * WIDTH]

    def rotate(x: np.ndarray) -> np.ndarray:
        half = np.concatenate([-x[:, WIDTH // 2 :], x[:, : WIDTH // 2]], axis=1)
        return x * np.cos(angles) + half * np.sin(angles)

    outputs = []
    for number in range(HEADS):
        shared = number // (HEADS // KEY_HEADS)
        scores = rotate(head("q_proj", number)) @ rotate(head("k_proj", shared)).T / math.sqrt(WIDTH)
        scores = np.exp(np.where(np.tril(np.ones((length, length))) > 0, scores, -np.inf))
        outputs.append(scores / scores.sum(axis=1, keepdims=True) @ head("v_proj", shared))
    return np.concatenate(outputs, axis=1) @ own["self_attn.o_proj.weight"].T
