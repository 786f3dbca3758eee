"""The Helm chart, by Helm itself: it lints, renders what deploy/k8s has, and refuses values that it does not know."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.cluster import ClusterError, find_nginx
from tests.deploy.test_files import DEPLOY, KUBERNETES, compose, manifests, validate
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

# Helm comes as a wheel, and only for this kind of machine.
helm = pytest.importorskip("helm_python", reason="Helm as a wheel is for Linux on x86-64 only")

CHART = DEPLOY / "helm"
Objects = dict[tuple[str, str], dict[str, Any]]

EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.com/mine", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "api": {
        "replicas": 3,
        "maxReplicas": 30,
        "settings": {"TURNSTREAM_PROTOCOLS": "default,a2a", "TURNSTREAM_MAX_BODY": "1048576"},
        "resources": {"requests": {"cpu": 1}},
    },
    "worker": {"drainSeconds": 1200000, "settings": {"TURNSTREAM_AGENTS": "/etc/turnstream/agents.toml"}},
    "nginx": {"trustedProxies": ["10.0.0.0/8", "fd00::/8"]},
    "scaling": {"enabled": False},
    "networkPolicy": {"brokerPorts": [6380, 26379], "monitoringNamespace": "prometheus"},
}


def rendered(
    values: dict[str, Any] | None = None, chart: Path = CHART, namespace: str = "turnstream"
) -> Objects:
    """What Helm would send to a cluster, by kind and name."""
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        files = loaded.render(values, name="turnstream", namespace=namespace)
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    found = [each for text in texts for each in yaml.safe_load_all(text) if each]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(objects) == len(found)
    return objects


def container(objects: Objects, name: str) -> dict[str, Any]:
    """The container of a Deployment."""
    (found,) = objects["Deployment", f"turnstream-{name}"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def variables(objects: Objects, name: str) -> dict[str, str]:
    """The environment of that container."""
    return {each["name"]: each["value"] for each in container(objects, name)["env"]}


def test_helm_has_nothing_to_say() -> None:
    """`helm lint --strict`, with the defaults and with every value given."""
    for values in ({}, EVERYTHING):
        report = helm.lint(CHART, values, strict=True, kube_version=f"v{KUBERNETES[0]}.0")
        assert report["total_charts_linted"] == 1
        assert not report["errors"]
        # An icon, which is for catalogues.
        assert not [each for each in report["messages"] if "icon is recommended" not in each["error"]]


def test_it_is_this_version() -> None:
    """The image that the chart asks for is the one of this tree."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    assert chart["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


def test_it_renders_what_kustomize_applies() -> None:
    """With its defaults: the objects of deploy/k8s, the image and the files that deploy/kustomization.yaml names."""
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    (image,) = kustomization["images"]
    expected = {(each["kind"], each["metadata"]["name"]): each for each in manifests()}
    del expected["Namespace", "turnstream"]
    for each in expected.values():
        if each["kind"] == "Deployment":
            (one,) = each["spec"]["template"]["spec"]["containers"]
            one["image"] = one["image"].replace("turnstream", f"{image['newName']}:{image['newTag']}")
    for generated in kustomization["configMapGenerator"]:
        files = {(DEPLOY / name).name: (DEPLOY / name).read_text() for name in generated["files"]}
        expected["ConfigMap", generated["name"]] = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": files,
        }  # fmt: skip
    objects = rendered()
    # In place of the hash that kustomize appends to the names of the files' objects.
    pods = objects["Deployment", "turnstream-nginx"]["spec"]["template"]["metadata"]
    assert len(pods.pop("annotations")["checksum/nginx"]) == 64
    for each in objects.values():
        if each["kind"] == "ConfigMap":
            each["data"] = {name: f"{text.strip()}\n" for name, text in each["data"].items()}
    assert objects == expected


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field(version: str) -> None:
    """With every value given, too."""
    for values in (None, EVERYTHING):
        for each in rendered(values).values():
            validate(each, version)


def test_values_reach_what_they_are_for() -> None:
    """Image, settings, replicas, time to drain, ports and namespaces."""
    objects = rendered(EVERYTHING, namespace="chat")
    image = f"registry.example.com/mine@{EVERYTHING['image']['digest']}"
    assert [container(objects, name)["image"] for name in ("api", "worker")] == [image] * 2
    assert container(objects, "api")["resources"]["requests"]["cpu"] == 1
    assert variables(objects, "api").items() >= EVERYTHING["api"]["settings"].items()
    worker = objects["Deployment", "turnstream-worker"]["spec"]
    assert variables(objects, "worker")["TURNSTREAM_DRAIN_SECONDS"] == "1200000"
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] == 1200020
    assert worker["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert [
        objects["Deployment", f"turnstream-{name}"]["spec"]["replicas"] for name in ("api", "worker")
    ] == [3, 2]
    assert not [kind for kind, _ in objects if kind in {"ScaledObject", "HorizontalPodAutoscaler"}]
    egress = objects["NetworkPolicy", "turnstream-api"]["spec"]["egress"]
    assert [each["port"] for rule in egress for each in rule["ports"]] == [6380, 26379]
    scaled = rendered({"api": {"replicas": 3}}, namespace="chat")
    queries = [
        each["metadata"]["query"] for each in scaled["ScaledObject", "turnstream-worker"]["spec"]["triggers"]
    ]
    assert all('namespace="chat"' in query for query in queries)
    assert scaled["HorizontalPodAutoscaler", "turnstream-api"]["spec"]["minReplicas"] == 3
    assert not [
        kind for kind, _ in rendered({"networkPolicy": {"enabled": False}}) if kind == "NetworkPolicy"
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 3},
        {"api": {"replicas": 0}},
        {"api": {"settings": {"TURNSTREAM_MAX_BODY": 1048576}}},
        {"api": {"settings": {"TURNSTREAM_HOST": "127.0.0.1"}}},
        {"worker": {"settings": {"OPENAI_API_KEY": "sk-1"}}},
        {"image": {"digest": "latest"}},
        {"nginx": {"trustedProxies": ["10.0.0.0/8; deny all"]}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    """A name that is none, a number where Helm would write 1.048576e+06, a setting that the chart makes, a secret."""
    with pytest.raises(helm.HelmError):
        rendered(values)


def test_the_schema_is_one_and_covers_every_value() -> None:
    """values.schema.json fits its meta-schema, and lists what values.yaml has."""
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--check-metaschema", CHART / "values.schema.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr

    def compared(schema: dict[str, Any], values: Any) -> None:
        known = schema.get("properties", {})
        if isinstance(values, dict) and known:
            assert set(values) >= set(known) - {"global", "requests", "limits"}
            for name, value in values.items():
                compared(known[name], value)

    with helm.Chart.load(CHART) as chart:
        compared(chart.schema, yaml.safe_load((CHART / "values.yaml").read_text()))


def test_a_package_holds_the_files_themselves(tmp_path: Path) -> None:
    """The links to deploy/nginx.conf and its like are files in a packaged chart."""
    with helm.Chart.load(CHART) as chart:
        package = chart.save(tmp_path)
    assert rendered(chart=package) == rendered()


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    """`nginx -t` on the rendered files, with a gateway that is trusted."""
    try:
        program = find_nginx()
    except ClusterError as error:
        pytest.skip(str(error))
    objects = rendered(EVERYTHING)
    (tmp_path / "turnstream").mkdir()
    (tmp_path / "run").mkdir()
    for name, text in objects["ConfigMap", "turnstream-nginx-beside"]["data"].items():
        # nginx looks the service's name up when it starts; there is none here.
        (tmp_path / "turnstream" / name).write_text(text.replace("turnstream-api:8090", "127.0.0.1:8090"))
    (tmp_path / "nginx.conf").write_text(objects["ConfigMap", "turnstream-nginx"]["data"]["nginx.conf"])
    assert "set_real_ip_from fd00::/8;" in (tmp_path / "turnstream" / "listen.conf").read_text()
    checked = subprocess.run(
        [program, "-t", "-e", "stderr", "-p", tmp_path / "run", "-c", tmp_path / "nginx.conf"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_compose_runs_the_same() -> None:
    """The same nginx, users and settings as docker-compose.yml, except for what it does instead of a cluster."""
    services, objects = compose()["services"], rendered()
    assert services["nginx"]["image"] == "${NGINX_IMAGE:-" + container(objects, "nginx")["image"] + "}"
    own = {"TURNSTREAM_REDIS_URL", "TURNSTREAM_PROCESSES", "TURNSTREAM_SECRETS_DIR", "TURNSTREAM_AGENTS"}
    for name in ("api", "worker"):
        there = {key: value for key, value in services[f"{name}-1"]["environment"].items() if key not in own}
        here = {key: value for key, value in variables(objects, name).items() if key not in own}
        assert here == there
