"""Joint answers in a JSONL file, tokenized for the agents' models.

| line | source |
|---|---|
| `{"task_id": ID, "completions": [TEXT, ...]}` | answers to the first prompts of a training task |
| `{"prompts": [PROMPT, ...], "completions": [TEXT, ...]}` | answers to given prompts; one text as `prompts`: for all |
| `{"task": ID, "nodes": [...]}` | an episode of `episodes.jsonl`, of a run or of `marl-ray eval --episodes` |

Lists have one entry per agent. The first two kinds may have a `reward`, for which answers are selected. Episodes of a
run's evaluations are left out, because their tasks are held out from training.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.chat import Prompt, with_system_prompt
from marl_ray.core.episode import Completion, Task, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import did_you_mean, pluralize
from marl_ray.data.loading import read_jsonl
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.plugin_checks import check_prompts, qualified_method_name
from marl_ray.evaluation.scoring import tasks_by_id
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import encode_answer, encode_prompt, load_tokenizer
from marl_ray.telemetry.episode_records import recorded_prompt
from marl_ray.telemetry.sinks import is_evaluation

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
KEYS = ("task_id", "prompts", "completions", "reward")


@dataclass(frozen=True, slots=True)
class JointAnswer:
    """One prompt and one answer per agent, and the reward per agent if it is known."""

    prompts: Sequence[Prompt]
    answers: Sequence[str]
    rewards: Sequence[float] | None


class AnswersFile:
    """Reads the joint answers of a file for the agents of `config`. `templates` says per model name whether its prompts
    go through the chat template."""

    what: ClassVar[str] = "answers file"

    def __init__(self, path: Path, config: Config, templates: Mapping[str, bool]) -> None:
        self.path = expand_home(path)
        self.config = config
        self.templates = templates

    def groups(self) -> tuple[list[list[Group]], bool]:
        """Return each agent's groups of one answer, and whether the answers have rewards. Raises UserError."""
        joint = self._joint_answers()
        if not joint:
            raise UserError(f"{self.what} {self.path} has no answer that can be trained on")
        known = {answer.rewards is not None for answer in joint}
        if len(known) > 1:
            raise UserError(f"{self.what} {self.path} has answers with and without reward: give all of them a reward")
        left_out: Counter[str] = Counter()
        groups = []
        for agent in range(self.config.num_agents):
            groups_of_agent = []
            for answer in joint:
                group = self._group(answer, agent, left_out)
                if group is not None:
                    groups_of_agent.append(group)
            groups.append(groups_of_agent)
        for reason, count in left_out.items():
            logger.warning(f"{pluralize(count, 'answer')} left out: longer than {reason}")
        for agent, groups_of_agent in enumerate(groups):
            if not groups_of_agent:
                raise UserError(f"all answers of agent {agent} are too long: raise {' or '.join(left_out)}")
        return groups, known == {True}

    @cached_property
    def tokenizers(self) -> dict[str, Any]:
        """The tokenizer of each model by its name."""
        tokenizers: dict[str, Any] = {}
        for agent in self.config.agents:
            if agent.name not in tokenizers:
                tokenizers[agent.name] = load_tokenizer(resolve_model(agent.name), self.config.model)
        return tokenizers

    def _group(self, joint: JointAnswer, agent: int, left_out: Counter[str]) -> Group | None:
        """Return an agent's answer as a group. Return None if it is too long to be sampled, counted in `left_out`."""
        from jinja2 import TemplateError

        settings = self.config.agents[agent]
        tokenizer = self.tokenizers[settings.name]
        template = self.templates[settings.name]
        prompt = with_system_prompt(joint.prompts[agent], settings.system_prompt)
        try:
            prompt_ids = tuple(encode_prompt(tokenizer, prompt, template, settings.chat_template_kwargs))
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"the chat template of {settings.name} rejects a prompt of agent {agent}: {error}"
            ) from None
        answer_ids = tuple(encode_answer(tokenizer, joint.answers[agent], settings.stop))
        if len(answer_ids) > settings.max_new_tokens:
            left_out[f"{self.config.algorithm}.max_new_tokens ({settings.max_new_tokens})"] += 1
            return None
        max_length = self.config.model.max_length
        if len(prompt_ids) + len(answer_ids) > max_length:
            left_out[f"model.max_length ({max_length}), with the prompt"] += 1
            return None
        unknown_logprobs = (0.0,) * len(answer_ids)
        completion = Completion(answer_ids, joint.answers[agent], unknown_logprobs, "stop", ())
        returned = joint.rewards[agent] if joint.rewards else 1.0
        return Group(0, sibling_calls(prompt_ids, [completion]), (returned,))

    def _joint_answers(self) -> list[JointAnswer]:
        def answers(row: Mapping[str, Any]) -> Iterable[JointAnswer]:
            if "nodes" in row:
                return self._of_episode(row)
            return [self._of_line(row)]

        return self._read(answers)

    def _read(self, items: Callable[[Mapping[str, Any]], Iterable[Item]]) -> list[Item]:
        """Return the items of all lines but evaluation episodes. Raises UserError."""
        found: list[Item] = []
        try:
            for number, row in read_jsonl(self.path, self.what):
                try:
                    if not is_evaluation(row):
                        found.extend(items(row))
                except UserError as error:
                    raise UserError(f"{self.what} {self.path}, line {number}: {error}") from None
                except (KeyError, IndexError, TypeError) as error:
                    problem = f"not an episode of this config ({type(error).__name__})"
                    raise UserError(f"{self.what} {self.path}, line {number}: {problem}") from None
        except OSError as error:
            raise UserError(f"{self.what} {self.path} cannot be read ({error.strerror})") from None
        return found

    def _of_line(self, row: Mapping[str, Any]) -> JointAnswer:
        check_keys(row, KEYS)
        answers = row.get("completions")
        agents = self.config.num_agents
        if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
            raise UserError("completions should be a list of one text per agent")
        if len(answers) != agents:
            raise UserError(f"{pluralize(len(answers), 'completion')} for {pluralize(agents, 'agent')}")
        reward = row.get("reward")
        if reward is None:
            rewards = None
        elif isinstance(reward, int | float) and not isinstance(reward, bool):
            rewards = [float(reward)] * agents
        else:
            raise UserError(f"reward should be a number, not {reward!r:.40}")
        return JointAnswer(self._prompts_of_line(row, answers), answers, rewards)

    def _prompts_of_line(self, row: Mapping[str, Any], answers: Sequence[str]) -> list[Prompt]:
        if ("prompts" in row) == ("task_id" in row):
            raise UserError("give either prompts or a task_id")
        if "prompts" in row:
            prompts = row["prompts"]
        else:
            prompts = self._prompts(str(row["task_id"]), answers)
        agents = self.config.num_agents
        if isinstance(prompts, str):
            prompts = [prompts] * agents
        if not isinstance(prompts, list) or len(prompts) != agents:
            raise UserError("prompts should be one text, or a list of one prompt per agent")
        try:
            check_prompts("the file", prompts, agents)
        except (TypeError, ValueError):
            raise UserError("a prompt should be a text, or chat messages that end with one of role user") from None
        return prompts

    def _of_episode(self, row: Mapping[str, Any]) -> Iterator[JointAnswer]:
        """Yield the joint answers of all turns; with composition chat, whose later prompts continue a conversation, of
        the first turn."""
        for _, answers in self.answers_by_node(row):
            for answer, _ in answers:
                yield answer

    def answers_by_node(
        self, row: Mapping[str, Any]
    ) -> Iterator[tuple[Mapping[str, Any], list[tuple[JointAnswer, float]]]]:
        """Yield the nodes of an episode, each with its joint answers and the team's reward of each."""
        for node in row["nodes"]:
            if node["turn"] > 1 and self.config.external.composition == "chat":
                continue
            if len(node["prompts"]) != self.config.num_agents:
                agents = pluralize(len(node["prompts"]), "agent")
                raise UserError(f"an episode of {agents}, and the config has {self.config.num_agents}")
            rewarded_answers = []
            for action in node["joint_actions"]:
                prompts = []
                answers = []
                for agent, index in enumerate(action["indices"]):
                    prompts.append(recorded_prompt(node, agent, index))
                    answers.append(node["responses"][agent][index])
                reward = action["reward"]
                rewards = action.get("rewards", [reward] * len(answers))
                rewarded_answers.append((JointAnswer(prompts, answers, rewards), float(reward)))
            yield node, rewarded_answers

    def _prompts(self, name: str, answers: Sequence[str]) -> list[Prompt]:
        """Return the agents' prompts of a training task. Agents of a later round read the earlier answers."""
        task = self._task(name)
        environment = self._environment
        prompts = list(self.first_prompts(name))
        earlier: dict[int, str] = {}
        for round_agents in abilities.order(environment, task):
            if earlier:
                for agent in round_agents:
                    prompts[agent] = abilities.prompt_after(environment, task, agent, prompts[agent], earlier)
            # Agents of one round do not read each other's answers.
            earlier |= {agent: answers[agent] for agent in round_agents}
        return prompts

    def first_prompts(self, name: str) -> Sequence[Prompt]:
        """Return the prompts of a training task before any agent answers. Raises UserError for an unknown task."""
        environment = self._environment
        prompts: Sequence[Prompt] = environment.first_prompts(self._task(name))
        method = qualified_method_name(environment, "first_prompts")
        check_prompts(method, prompts, self.config.num_agents)
        return prompts

    def _task(self, name: str) -> Task:
        if name not in self._tasks:
            dataset = self.config.dataset
            raise UserError(f"{dataset.name} {dataset.train_split!r} has no task {name!r}: give prompts instead")
        return self._tasks[name]

    @cached_property
    def _tasks(self) -> dict[str, Task]:
        dataset = self.config.dataset
        return tasks_by_id(dataset.name, dataset.train_split, dataset.type)

    @cached_property
    def _environment(self) -> Any:
        return ENVIRONMENTS.get(self.config.environment).from_config(self.config)


def check_keys(row: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise UserError for a key of a line that is none of `keys`."""
    for key in row:
        if key not in keys:
            raise UserError(f"unknown key {key!r}{did_you_mean(key, keys)}")
