"""Section of a config for episodes that programs play through the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import NonNegativeInt, Port, PositiveFloat, PositiveInt, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(Section):
    """Environment `gateway`: an episode is a run of a program, which calls the agents over an OpenAI-compatible API."""

    command: str | None = None
    """Command of an episode, without a shell. `{task_file}` is replaced by the path of a JSON file with the task, and
    `{reward_file}` by the path that reward `file` reads. null: `function` plays the episodes."""
    task_fields: tuple[str, ...] | None = None
    """Fields of the task in the task file, besides `id` and `prompt`. null: with `judge` only `entry_point`, because
    others, such as tests, tell the right answer; otherwise all fields."""
    function: str | None = None
    """Async function `module:function` that plays an episode in the driver process and returns its reward. null:
    `command` plays the episodes, or without one the agents of `judge`, once and in its order."""
    service: bool = False
    """Whether `command` is one long-running process, which asks for tasks (GET /v1/tasks/next), plays their episodes
    and posts the results. command null: the user starts the service; the log has the address and a file with the
    token. `concurrency` is then the number of episodes that the service plays at the same time."""
    roles: tuple[str, ...] = ()
    """Model name of each agent in requests, such as [coder, tester]. Empty: agent_0, agent_1, and so on."""
    reward: Literal["last_line", "file", "post", "judge"] = "last_line"
    """Source of the reward of a command. last_line: the last line of its output; file: the file `{reward_file}`; post:
    the last POST to /v1/episode/reward; judge: the environment `judge`."""
    judge: str | None = None
    """Environment that computes the reward from the agents' answers, such as code_generation. null: none."""
    credit: Literal["runs", "calls"] = "runs"
    """Calls that are compared with each other. runs: all calls of the runs of a task, by the rewards of their runs.
    calls: branch replays. A task has one run; some of its calls are sampled anew, and for each answer the program runs
    again, with the recorded answers to everything before. Siblings are answers to one prompt, with the rewards of their
    own runs. `num_generations` is their number, including the recorded answer. A step then has
    1 + `replayed_calls` x (`num_generations` - 1) runs per task. The program has to ask the same again if it gets the
    same answers."""
    replayed_calls: PositiveInt = 2
    """Number of calls of a task's run that `credit` calls samples anew, chosen at random from the calls of agents that
    learn."""
    on_failure: Literal["lost", "zero"] = "lost"
    """Treatment of an episode without a reward: an exit code other than 0, a timeout, or no number. lost: leave it out
    of its group; zero: reward 0."""
    retries: NonNegativeInt = 0
    """Number of times that a failed episode is run again, from its beginning and with the same random numbers, before
    on_failure applies. The calls of a failed attempt are discarded. For programs that fail for reasons of their own,
    such as a lost connection: a program that fails because of an answer gets the same answer again."""
    timeout_s: PositiveFloat = 600.0
    """Wall-clock limit of an episode in seconds. Then the program and its child processes are killed."""
    max_calls: PositiveInt = 256
    """Maximum number of calls per episode. Further calls are refused with status 403."""
    concurrency: PositiveInt = 32
    """Maximum number of episodes that run at the same time."""
    memory_mb: PositiveInt | None = None
    """Limit of the address space of each process of a command in MiB. null: no limit. With `sandbox` namespaces it also
    limits the files in the episode's folder."""
    sandbox: Literal["none", "namespaces"] = "none"
    """Isolation of a command. none: the rights of the user, within the limits above. namespaces: for programs that are
    not trusted, or run code that a model has written. Such a command reads `readable`, its interpreter and the system's
    libraries, writes to the episode's temporary folder only, and connects to the gateway only. Needs Linux with user
    namespaces, and `memory_mb`."""
    readable: tuple[str, ...] = ()
    """Files and folders that a command in namespaces may read. Empty: the folder of its program, and the files and
    folders that it names; of the working folder and the home folder only the named files."""
    max_processes: PositiveInt = 256
    """Maximum number of processes and threads of a command in namespaces."""
    pass_variables: tuple[str, ...] = ()
    """Environment variables of the driver that a command receives besides PATH, HOME, LANG and TZ."""
    port: Port = 0
    """Port on localhost. 0: a free port."""

    def runs_per_task(self, siblings: int) -> int:
        """Return the number of runs of a task in a step with groups of `siblings`, without removals of agents."""
        if self.credit == "runs":
            return siblings
        return 1 + self.replayed_calls * (siblings - 1)
