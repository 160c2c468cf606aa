"""The quickstart's task set and base policy."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen2ForCausalLM

from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.sandbox import Program, Sandbox
from marl_ray.toy import BASE_PATH, TASKS_PATH
from tests.factories import row_task
from tools.toy.demonstrations import FIRST_TURN, PERFECT, attempt, second_attempt
from tools.toy.families import split_problems
from tools.toy.make_base import TokenScene, pack, play, response_loss
from tools.toy.make_tasks import task_rows
from tools.toy.scenes import as_task

ROWS = [json.loads(line) for line in TASKS_PATH.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def policy() -> tuple[Qwen2ForCausalLM, AutoTokenizer]:
    return Qwen2ForCausalLM.from_pretrained(BASE_PATH).eval(), AutoTokenizer.from_pretrained(BASE_PATH)


def test_make_tasks_reproduces_the_task_file() -> None:
    assert task_rows("toy") == ROWS


def test_enough_tasks_of_every_family_in_both_splits() -> None:
    splits = Counter(row["split"] for row in ROWS)
    assert splits["train"] >= 160
    assert splits["eval"] >= 32
    families = {split: {r["family"] for r in ROWS if r["split"] == split} for split in splits}
    assert families["train"] == families["eval"]
    assert len(families["eval"]) >= 10
    assert len({row["task_id"] for row in ROWS}) == len(ROWS)


def test_no_eval_task_is_a_renamed_train_task() -> None:
    keys = {split: {problem.key for problem in problems} for split, problems in split_problems().items()}
    assert not keys["eval"] & (keys["train"] | keys["spare"])
    rows: dict[str, set[str]] = {"train": set(), "eval": set()}
    for row in ROWS:
        argument = row["prompt"].split("(")[1].split(":")[0]
        unnamed = re.sub(rf"\b{argument}\b", "v", row["canonical_solution"])
        rows[row["split"]].add(row["family"] + unnamed)
    assert not rows["train"] & rows["eval"]


def test_canonical_solutions_pass_and_joint_ones_earn_the_maximum(sandbox: Sandbox) -> None:
    pair = CodeGeneration(2)
    rows = random.Random(0).sample(ROWS, 40)
    alone = [Program(r["prompt"] + r["canonical_solution"], r["test"], r["entry_point"]) for r in rows]
    joint = [pair.attempt(row_task(r), [r["aux_solution"], r["main_solution"]], last=True) for r in rows]
    reports = sandbox.run_batch([*alone, *(attempt.program for attempt in joint)])
    for row, report in zip(rows, reports, strict=False):
        assert report.passed == report.total == row["test"].count("assert candidate(")
    for attempt_, report in zip(joint, reports[len(rows) :], strict=True):
        assert pair.outcome(attempt_, report).reward == pytest.approx(4.0)


def test_four_to_eight_asserts_each() -> None:
    assert all(4 <= row["test"].count("assert candidate(") <= 8 for row in ROWS)


def test_demonstrations_are_correct_at_the_rate_of_their_skill() -> None:
    problem, rng = split_problems()["train"][0], random.Random(0)
    perfect = {attempt(problem, "aux", PERFECT, rng).text for _ in range(20)}
    assert perfect == {f"def aux({problem.argument}):\n    return {problem.part()}"}
    noisy = Counter(attempt(problem, "aux", FIRST_TURN, rng).text for _ in range(400))
    assert 0.35 < noisy[next(iter(perfect))] / 400 < 0.65


def test_a_second_demonstration_without_the_problem_uses_only_its_own_code() -> None:
    problem, rng = split_problems()["train"][0], random.Random(0)
    wrong = 2 if problem.a != 2 else 3
    first = attempt(problem, "aux", PERFECT, rng)
    believed = type(first)("aux", first.text.replace(str(problem.a), str(wrong)), wrong, None)
    revised = second_attempt(problem, believed, PERFECT, rng, sees_problem=False, failing=False)
    assert revised.a == wrong
    seeing = second_attempt(problem, believed, PERFECT, rng, sees_problem=True, failing=True)
    assert seeing.a == problem.a


def test_packing_equals_separate_sequences(policy: tuple[Qwen2ForCausalLM, AutoTokenizer]) -> None:
    model, tokenizer = policy
    scene = TokenScene([5, 6, 7, 8], [[9, 10, 0], [11, 0]])
    other = TokenScene([12, 13], [[14, 15, 16, 0], [17, 0]])
    with torch.no_grad():
        packed = response_loss(model, pack([scene, other], tokenizer.pad_token_id))
        total, count = 0.0, 0
        for prompt, responses in ((s.prompt, s.responses) for s in (scene, other)):
            for response in responses:
                logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
                total += torch.nn.functional.cross_entropy(logits, torch.tensor(response), reduction="sum").item()
                count += len(response)
    assert packed.item() == pytest.approx(total / count, abs=1e-4)


def test_the_base_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in BASE_PATH.glob("*.safetensors")) <= 4_000_000
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= {p.name for p in BASE_PATH.iterdir()}


def test_tokenizer_round_trip(policy: tuple[Qwen2ForCausalLM, AutoTokenizer]) -> None:
    """Check that the BPE was trained with the pre-tokenizer that is loaded (see make_tokenizer)."""
    model, tokenizer = policy
    raw = Tokenizer.from_file(str(BASE_PATH / "tokenizer.json"))
    rng = random.Random(0)
    texts = ["x = 1234\n\n\n    y = 'ä' # it's\t\n", "    return 3 * n + 4", "def aux(n):\n        pass\n\n"]
    for problem in rng.sample(split_problems()["eval"], 20):
        texts += [prompt for n in (1, 2, 3) for prompt in CodeGeneration(n).first_prompts(as_task(problem))]
        texts += [attempt(problem, role, FIRST_TURN, rng).text for role in ("aux", "main", "single")]
    for text in texts:
        ids = tokenizer(text).input_ids
        assert ids == raw.encode(text).ids
        assert tokenizer.decode(ids) == text
        assert len(ids) + 96 <= model.config.max_position_embeddings
    assert tokenizer.chat_template is None
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)


def test_the_base_policy_is_a_plausible_start(policy: tuple[Qwen2ForCausalLM, AutoTokenizer], sandbox: Sandbox) -> None:
    model, tokenizer = policy
    torch.manual_seed(0)
    problems = split_problems()["eval"][::2]
    first, second = play(model, tokenizer, problems, sandbox.run_batch)
    assert 1.2 <= sum(first) / len(first) <= 2.2
    assert 1.2 <= sum(second) / len(second) <= 2.6
    assert max(first) > 3.9
    assert min(first) < 1.0
    (alone,) = play(model, tokenizer, problems, sandbox.run_batch, agents=1, turns=1)
    assert 0.7 <= sum(alone) / len(alone) <= 1.8
