"""Values for Dagster's Helm chart, by what Dagster and the client of Kubernetes know of them.

The chart itself is in no package index: what its templates make of these values stands here.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance, DagsterRun

from tokflow_tests.deploy.compose import DEPLOY

pytest.importorskip("dagster_k8s", reason="it is installed by make test-deploy")

from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
from kubernetes.client import models

pytestmark = pytest.mark.deploy

VALUES = yaml.safe_load((DEPLOY / "helm/values.yaml").read_text())

PODS = {
    "code": VALUES["dagster-user-deployments"]["deployments"][0],
    "webserver": VALUES["dagsterWebserver"],
    "daemon": VALUES["dagsterDaemon"],
}

RUNS = VALUES["runLauncher"]["config"]["k8sRunLauncher"]

CLUSTER = """
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {}}]
"""


def test_dagster_takes_the_instance_that_the_chart_makes_of_the_values(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    own = {name: snake(VALUES[name]) for name in ("concurrency", "retention")}
    for settings in own.values():
        assert settings.pop("enabled") is True
    launcher = {name: of for name, of in RUNS.items() if name != "envSecrets"}
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    config = {
        "load_incluster_config": False,
        "kubeconfig_file": str(tmp_path / "cluster.yaml"),
        "instance_config_map": "dagster-instance",
        "service_account_name": "dagster",
        "dagster_home": VALUES["global"]["dagsterHome"],
        "env_secrets": [of["name"] for of in RUNS["envSecrets"]],
        **{snake_word(name): of for name, of in launcher.items() if name != "runK8sConfig"},
        "run_k8s_config": {snake_word(name): of for name, of in RUNS["runK8sConfig"].items()},
    }
    instance = {
        "run_launcher": {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": config},
        "telemetry": VALUES["telemetry"],
        **own,
        **VALUES["additionalInstanceConfig"],
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(instance))

    with DagsterInstance.from_config(str(tmp_path)) as loaded:
        context = K8sContainerContext.create_for_run(
            DagsterRun("build"), loaded.run_launcher, False
        )
    container = context.run_k8s_config.container_config
    assert container["resources"]["limits"] == {"memory": "16Gi"}
    assert container["security_context"]["read_only_root_filesystem"] is True
    assert context.run_k8s_config.pod_spec_config["security_context"]["run_as_non_root"] is True


def test_the_instance_is_that_of_compose_but_for_what_the_chart_says_itself():
    own = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
    more = VALUES["additionalInstanceConfig"]

    assert more == {name: own[name] for name in more}
    assert snake(VALUES["concurrency"]) == {"enabled": True, **own["concurrency"]}
    assert snake(VALUES["retention"]) == {"enabled": True, **own["retention"]}


@pytest.mark.parametrize("name", [*PODS, "runs"])
def test_kubernetes_takes_each_pod_and_it_is_confined(name: str):
    values = PODS.get(name, RUNS)
    container = {key: values[key] for key in ("resources", "securityContext", "volumeMounts")}
    pod_context = values.get("podSecurityContext") or RUNS["runK8sConfig"]["podSpecConfig"]
    spec = {
        "containers": [{"name": name, **container, **probes(values)}],
        "volumes": values["volumes"],
        "securityContext": pod_context.get("securityContext", pod_context),
    }

    pod = made_of(models.V1PodSpec, spec)
    [made] = pod.containers
    assert made.resources.limits["memory"]
    assert made.security_context.read_only_root_filesystem
    assert made.security_context.capabilities.drop == ["ALL"]
    assert pod.security_context.run_as_non_root
    assert {of.name for of in made.volume_mounts} == {of.name for of in pod.volumes}


def test_the_manifests_are_kubernetes_own_and_name_what_the_values_name():
    policy, job = VALUES["extraManifests"]
    image = PODS["code"]["image"]

    made_of(models.V1NetworkPolicySpec, policy["spec"])
    made = made_of(models.V1CronJobSpec, job["spec"])
    [container] = made.job_template.spec.template.spec.containers
    assert container.image == f"{image['repository']}:{image['tag']}"
    secret = container.env[0].value_from.secret_key_ref.name
    assert secret == VALUES["global"]["postgresqlSecretName"]
    assert policy["spec"]["podSelector"]["matchLabels"]["deployment"] == PODS["code"]["name"]


def test_no_value_is_a_secret():
    words = [word for word in keys(VALUES) if re.search("password|secret|token", word, re.I)]

    assert {*words} == {
        "generatePostgresqlPasswordSecret",
        "postgresqlSecretName",
        "envSecrets",
        "secretKeyRef",
        "secretName",
        "nginx.ingress.kubernetes.io/auth-secret",
    }


def made_of(model: Any, values: Any) -> Any:
    """Return the model of Kubernetes' client.

    Raises: Exception for a name that it does not have.
    """
    return k8s_model_from_dict(model, k8s_snake_case_dict(model, values))


def probes(values: Any) -> dict[str, Any]:
    return {name: of for name, of in values.items() if name.endswith("Probe")}


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    if isinstance(value, list):
        for of in value:
            yield from keys(of)


def snake(value: Any) -> Any:
    if isinstance(value, dict):
        return {snake_word(name): snake(of) for name, of in value.items()}
    return value


def snake_word(word: str) -> str:
    return re.sub("([A-Z])", lambda match: "_" + match[1].lower(), word)
