"""Weight synchronisation: time and bytes for 1, 2 and 4 agents at the same time, and for several replicas per agent.

    python -m benchmarks.weight_sync [--rounds 20] [--model bundled:toy-base]

Starts real learners and engines, without training. In every round all learners send changed weights concurrently. The
bytes are the size of one agent's weights in the object store, where they are put once for any number of replicas. Most
of the run time is the start of the actors.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from marl_ray.actors.run_actors import start_actors
from marl_ray.config import Config, from_tree
from marl_ray.core.concurrency import gather
from marl_ray.storage.run_folder import RunFolder, StoredHistory

SHAPES = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4))
"""Numbers of agents and of replicas per agent."""


def config_of(agents: int, replicas: int, model: str) -> Config:
    """Return a config whose actors share the cores of one machine."""
    return from_tree(
        {
            "model": {"name": model, "max_length": 512},
            "dataset": {"name": "bundled:toy"},
            "magrpo": {"num_agents": agents},
            "resources": {
                "generator": {"cpus": 0.1, "replicas": replicas, "kv_cache_mb": 64},
                "learner": {"cpus": 0.1},
                "sandbox": {"workers": 1, "cpus": 0.1},
            },
        },
        "magrpo",
    )


async def measure(agents: int, replicas: int, model: str, rounds: int, folder: Path) -> tuple[float, int]:
    """Return the median seconds until all agents have sent their weights, and the bytes per agent."""
    team = await start_actors(config_of(agents, replicas, model), 1)
    try:
        for learner, generators in zip(team.learners, team.generators, strict=True):
            await learner.connect(generators, StoredHistory(RunFolder(folder), learner.policy))
        seconds, sent = [], 0
        for _ in range(rounds + 1):
            started = time.perf_counter()
            results = await gather(*(learner.update_weights(changed=True) for learner in team.learners))
            seconds.append(time.perf_counter() - started)
            sent = results[0].sent_bytes
        return statistics.median(seconds[1:]), sent
    finally:
        await team.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", default="bundled:toy-base")
    arguments = parser.parse_args()
    from marl_ray.cluster.ray_connection import connect, disconnect

    connect(verbose=False)
    print(f"{'agents':>7}{'replicas':>10}{'ms':>9}{'MB per agent':>14}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for agents, replicas in SHAPES:
                shape = measure(agents, replicas, arguments.model, arguments.rounds, Path(folder))
                seconds, sent = asyncio.run(shape)
                print(f"{agents:>7}{replicas:>10}{1000 * seconds:>9.0f}{sent / 1e6:>14.2f}", flush=True)
    finally:
        disconnect()


if __name__ == "__main__":
    main()
