"""Settings of the sandbox library from a run's config, and checks that they are available. Does not import Ray."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.cluster.placement_plan import make_plan
from marl_ray.config import AgentConfig, LoraConfig
from marl_ray.config.resource_sections import ResourcesConfig
from marl_ray.config.sections import SandboxConfig
from marl_ray.core.errors import UserError
from marl_ray.sandbox import Limits, Sandbox, SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.host.python_files import find_packages


def sandbox_settings(sandbox: SandboxConfig) -> SandboxSettings:
    """Return the library settings for the config's section `sandbox`."""
    limits = Limits(
        test_cpu_s=sandbox.test_timeout_s,
        test_wall_s=3 * sandbox.test_timeout_s,  # the machine may be busy
        program_wall_s=sandbox.program_timeout_s or 6 * sandbox.test_timeout_s,
        max_timeouts=sandbox.max_timeouts,
        memory_mb=sandbox.memory_mb,
    )
    return SandboxSettings(
        isolation=sandbox.isolation,
        require=sandbox.require,
        allow_unsafe=sandbox.allow_unsafe,
        limits=limits,
        packages=sandbox.packages,
        scratch_mb=sandbox.scratch_mb,
    )


def check_local_machine(
    agents: Sequence[AgentConfig], lora: LoraConfig, resources: ResourcesConfig, sandbox: SandboxConfig
) -> None:
    """Raise UserError if a run on this machine lacks GPUs, an isolation level that is requested by name, or the
    isolation that scratch folders need. Check nothing on a remote cluster."""
    from marl_ray.cluster.ray_connection import cluster_address  # imports Ray, which a dry run does without
    from marl_ray.cluster.ray_private import visible_gpu_count

    if cluster_address():
        return
    make_plan(agents, lora, resources, cluster_has_gpus=visible_gpu_count() > 0)
    settings = sandbox_settings(sandbox)
    takes_any_level = settings.require is None and settings.isolation in ("auto", "none")
    if takes_any_level and not settings.scratch_mb:
        return
    try:
        with Sandbox(settings):
            pass
    except SandboxUnavailable as error:
        hint = "See marl-ray sandbox doctor, or ask for less with sandbox.isolation and sandbox.require"
        raise UserError(f"sandbox: {error}. {hint}") from None


def check_sandbox(sandbox: SandboxConfig) -> None:
    """Raise UserError for an isolation level that no machine provides with these settings, and for packages that are
    not installed here (sandbox workers have the same environment)."""
    try:
        settings = sandbox_settings(sandbox)
        settings.candidates()
        find_packages(settings.packages)
    except SandboxUnavailable as error:
        raise UserError(f"sandbox: {error}") from None
    except (ValueError, ModuleNotFoundError) as error:
        raise UserError(str(error)) from None
