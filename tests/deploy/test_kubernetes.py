"""The KubeRay manifests agree with a schema of its API, the pinned versions and the placement plan."""

import ast
import copy
import shlex
from typing import Any

import jsonschema
import pytest

from marl_ray.cluster.bundles import pack
from marl_ray.config import Config
from tests.deploy.helpers import (
    CLUSTER,
    DOCKERFILES,
    JOB,
    MANIFESTS,
    PODS,
    SCHEMA,
    check_command,
    direct_requirements,
    setup_argument,
)
from tests.factories import plan_of


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_the_schema(name: str) -> None:
    jsonschema.validate(MANIFESTS[name], SCHEMA, cls=jsonschema.Draft202012Validator)


def with_mistake(path: str, value: Any) -> dict[str, Any]:
    """Return a copy of the RayCluster with one value changed, or removed with None."""
    wrong = copy.deepcopy(CLUSTER)
    *steps, last = [int(s) if s.isdigit() else s for s in path.split(".")]
    at: Any = wrong
    for step in steps:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return wrong


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("apiVersion", "ray.io/v1alpha1"),
        ("kind", "Deployment"),
        ("spec.headGroupSpec", None),
        ("spec.headGroupSpecs", {}),
        ("spec.rayVersion", "latest"),
        ("spec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("spec.workerGroupSpecs.0.minReplicas", None),
        ("spec.workerGroupSpecs.0.replicas", "1"),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.image", None),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.securityContext.privilege", False),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.resources.limits.memory", "16 GB"),
        ("spec.workerGroupSpecs.0.template.spec.volumes.0.emptyDir", {}),
        ("spec.headGroupSpec.template.spec.securityContext.allowPrivilegeEscalation", False),
    ],
)
def test_the_schema_rejects_mistakes(path: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(with_mistake(path, value), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_job_and_the_standing_cluster_have_the_same_spec() -> None:
    assert JOB["spec"]["rayClusterSpec"] == CLUSTER["spec"]


def test_ray_version_is_the_pinned_one() -> None:
    assert CLUSTER["spec"]["rayVersion"] == str(direct_requirements()["ray"].specifier).removeprefix("==")


def test_images_have_the_version_of_the_package_and_a_dockerfile() -> None:
    version = ast.literal_eval(setup_argument("version"))
    kinds = {path.suffix[1:] for path in DOCKERFILES}
    for name, pod in PODS.items():
        for container in pod["containers"]:
            assert container["image"] in {f"marl-ray:{version}-{kind}" for kind in kinds}, name


@pytest.mark.parametrize("name", PODS)
def test_pods_satisfy_the_restricted_security_level(name: str) -> None:
    """Check Kubernetes' Pod Security Standard `restricted`, and that no service account token is mounted."""
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"] + pod.get("initContainers", []):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", PODS)
def test_requests_equal_limits_and_mounts_have_volumes(name: str) -> None:
    pod = PODS[name]
    for container in pod["containers"]:
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert {"cpu", "memory"} <= set(resources["limits"])
        mounts = [m["name"] for m in container.get("volumeMounts", [])]
        assert sorted(mounts) == sorted(v["name"] for v in pod.get("volumes", []))


@pytest.mark.parametrize("name", [n for n in PODS if n != "job-submitter"])
def test_ray_pods_have_shared_memory_within_their_limit(name: str) -> None:
    pod = PODS[name]
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    volume = next(v for v in pod["volumes"] if v["name"] == mounts["/dev/shm"])
    assert volume["emptyDir"]["medium"] == "Memory"
    limit = pod["containers"][0]["resources"]["limits"]["memory"]
    assert 0 < int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) < int(limit.removesuffix("Gi"))


def test_driver_and_model_pods_mount_the_shared_volume() -> None:
    claim = MANIFESTS["runs-pvc.yaml"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for name in ("job-head", "job-gpu"):
        mounts = {m["mountPath"]: m["name"] for m in PODS[name]["containers"][0]["volumeMounts"]}
        volume = next(v for v in PODS[name]["volumes"] if v["name"] == mounts["/runs"])
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_only_the_pod_of_the_driver_has_secrets() -> None:
    for name, pod in PODS.items():
        secrets = [e for c in pod["containers"] for e in c.get("env", []) if "secretKeyRef" in e.get("valueFrom", {})]
        assert bool(secrets) == name.endswith("-head"), name
        assert all(e["valueFrom"]["secretKeyRef"]["optional"] for e in secrets)
    # With resource requests, Ray could place the driver on any pod.
    assert not any(key.startswith(("entrypointNum", "entrypointResources")) for key in JOB["spec"])


def job_config() -> Config:
    return check_command(shlex.split(JOB["spec"]["entrypoint"]))


def test_the_job_trains_and_writes_to_the_shared_volume() -> None:
    config = job_config()
    assert config.output.base_dir == "/runs"
    assert config.sandbox.require == "process+landlock"


def ray_nodes(spec: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return Ray's resources of each pod."""
    nodes = {}
    for group in [{"groupName": "head", **spec["headGroupSpec"]}, *spec["workerGroupSpecs"]]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        start = group["rayStartParams"]
        for i in range(group.get("replicas", 1)):
            nodes[f"{group['groupName']} {i}"] = {
                "CPU": float(start.get("num-cpus", limits["cpu"])),
                "GPU": float(start.get("num-gpus", limits.get("nvidia.com/gpu", 0))),
            }
    return nodes


def test_the_actors_of_the_job_fit_its_pods_and_fill_the_gpu_pod() -> None:
    nodes = ray_nodes(JOB["spec"]["rayClusterSpec"])
    assert nodes["head 0"] == {"CPU": 0.0, "GPU": 0.0}
    plan = plan_of(job_config(), cluster_has_gpus=True)
    assert pack(plan.bundles, list(nodes.values())) is not None
    models = [bundle for bundle in plan.bundles if bundle.gpus]
    assert sum(bundle.cpus for bundle in models) == nodes["gpu 0"]["CPU"]  # no room is left for a sandbox worker
    assert sum(bundle.gpus for bundle in models) == nodes["gpu 0"]["GPU"]
    assert sum(bundle.cpus for bundle in plan.bundles if not bundle.gpus) <= nodes["sandbox 0"]["CPU"]
