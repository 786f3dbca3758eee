"""The deployment files hold to their own schemas, and to what the code and the other files say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.cluster import ClusterError, find_nginx
from turnstream.api.server import GRACE_SECONDS, KEEP_ALIVE_SECONDS
from turnstream.shared import metrics
from turnstream.shared.settings import Settings
from turnstream.worker.worker import RELEASE_SECONDS

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"

# The oldest Kubernetes that the files are for (preStop's sleep), and the newest whose schemas we have.
KUBERNETES = ("1.34", "1.37")


def compose() -> dict[str, Any]:
    """docker-compose.yml."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return read


def manifests() -> list[dict[str, Any]]:
    """Every object of deploy/k8s."""
    listed = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(str(path.relative_to(DEPLOY)) for path in (DEPLOY / "k8s").glob("*.yaml"))
    return [each for name in listed for each in yaml.safe_load_all((DEPLOY / name).read_text())]


def pod(name: str) -> dict[str, Any]:
    """The pod of a Deployment."""
    found: dict[str, Any] = next(
        each for each in manifests() if each["kind"] == "Deployment" and each["metadata"]["name"] == name
    )["spec"]["template"]["spec"]
    return found


def seconds(text: str) -> int:
    """A duration as Compose writes it."""
    assert text.endswith("s")
    return int(text[:-1])


def strict(schema: Any) -> Any:
    """The schema, refusing names it does not know, as Kubernetes does when asked to be strict."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(each) for name, each in schema.items()}
    if schema.get("type") == "object" and schema.get("properties"):
        closed.setdefault("additionalProperties", False)
    return closed


def test_the_compose_file_is_one() -> None:
    """docker-compose.yml fits the Compose specification's schema."""
    checked = subprocess.run(
        [
            sys.executable, "-m", "check_jsonschema",
            "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yml",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def validate(each: dict[str, Any], version: str) -> None:
    """Check that an object fits its schema and has no field that this Kubernetes does not know."""
    if each["kind"] != "ScaledObject":
        kubernetes_validate.validate(each, version, strict=True)
        return
    schema = json.loads((Path(__file__).parent / "keda_scaledobject.json").read_text())
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(each, strict(schema))


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_kubernetes_files_are_ones(version: str) -> None:
    """Every object fits its schema and has no field that Kubernetes does not know."""
    for each in manifests():
        validate(each, version)


def test_the_dockerfile_is_clean() -> None:
    """The linter has nothing to say."""
    program = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([program, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


def test_the_image_holds_the_package(tmp_path: Path) -> None:
    """The builder is given what the Dockerfile copies and no more; laid out as there, all of the package is imported."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    lines = re.findall(r"^COPY (?!--from)(.+) /(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    copied = [(ROOT / name, tmp_path / target) for names, target in lines for name in names.split()]
    assert {f"!{source.relative_to(ROOT)}" for source, _ in copied} == {
        line for line in ignored if line[:1] == "!"
    }
    for source, target in copied:
        if source.is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            continue

        def left_out(folder: str, names: list[str]) -> set[str]:
            inside = Path(folder).relative_to(ROOT)
            return {name for name in names if str(inside / name) in ignored or name == "__pycache__"}

        shutil.copytree(source, target, ignore=left_out, dirs_exist_ok=True)
    assert not [path for path in (tmp_path / "app").rglob("*") if path.is_symlink()]
    loaded = "import turnstream.api.server as a, turnstream.worker.worker as w; print(a.__file__, w.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", loaded],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}/app"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    folder = tmp_path / "app" / "turnstream"
    assert done.stdout.split() == [str(folder / "api/server.py"), str(folder / "worker/worker.py")], (
        done.stderr
    )


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    """`nginx -t` on the files as docker-compose.yml mounts them."""
    try:
        program = find_nginx()
    except ClusterError as error:
        pytest.skip(str(error))
    shutil.copy(DEPLOY / "nginx.conf", tmp_path)
    shutil.copytree(DEPLOY / "nginx", tmp_path / "turnstream")
    (tmp_path / "run").mkdir()
    checked = subprocess.run(
        [program, "-t", "-e", "stderr", "-p", tmp_path / "run", "-c", tmp_path / "nginx.conf"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_the_image_gets_what_was_tested() -> None:
    """requirements-runtime.lock: the versions and hashes of requirements.lock, for all that the project needs."""
    tested, shipped = (_locked(ROOT / name) for name in ("requirements.lock", "requirements-runtime.lock"))
    differing = {name for name, pinned in shipped.items() if tested.get(name) != pinned}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {_name(each) for each in project["dependencies"]}
    advice = "make it anew: see `make lock`, whose second command does it"
    assert not differing, advice
    assert needed <= set(shipped), advice
    assert "pytest" not in shipped


def test_containers_have_no_rights_they_do_not_need() -> None:
    """Read-only root, no capability, no new privilege, limits; not root; and a way to see that each is well."""
    for name, service in compose()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"cpus", "memory", "pids"} <= set(service["deploy"]["resources"]["limits"]), name
        # Our own image names its user itself.
        assert service["image"].startswith("turnstream") or not service["user"].startswith(("0", "root")), (
            name
        )
        assert "healthcheck" in service or name == "operator"
    assert re.search(r"^USER 10001:10001$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for each in ("turnstream-api", "turnstream-worker", "turnstream-nginx"):
        spec = pod(each)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_no_service_sets_a_setting() -> None:
    """Kubernetes gives pods a variable `<SERVICE>_PORT` for each Service, and one is named `turnstream`."""
    names = {each["metadata"]["name"] for each in manifests() if each["kind"] == "Service"}
    assert "turnstream" in names
    for each in ("turnstream-api", "turnstream-worker"):
        assert pod(each)["enableServiceLinks"] is False


def test_no_secret_stands_in_a_file_or_in_the_environment() -> None:
    """Passwords and keys come as files; only nginx is published, and to this machine only."""
    services = compose()["services"]
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search(r"KEY|PASSWORD|:[^/@]*@", f"{variable}={value}"), name
    assert {name for name, service in services.items() if "ports" in service} == {"nginx"}
    assert "127.0.0.1" in services["nginx"]["ports"][0]
    assert all(each["file"].startswith("./deploy/secrets/") for each in compose()["secrets"].values())
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert not [each for each in manifests() if each["kind"] == "Secret"]


def test_whoever_is_told_to_end_gets_the_time_for_it() -> None:
    """Longer than the drain of a worker and what comes after it; longer than a front end's requests."""
    services = compose()["services"]
    for name, service in services.items():
        if name.startswith("worker"):
            drain = float(service["environment"]["TURNSTREAM_DRAIN_SECONDS"])
            assert seconds(service["stop_grace_period"]) > drain + RELEASE_SECONDS
        if name.startswith("api"):
            assert seconds(service["stop_grace_period"]) > GRACE_SECONDS
    worker = pod("turnstream-worker")
    variables = {each["name"]: each["value"] for each in worker["containers"][0]["env"]}
    drain = float(variables["TURNSTREAM_DRAIN_SECONDS"])
    assert worker["terminationGracePeriodSeconds"] > drain + RELEASE_SECONDS
    api = pod("turnstream-api")
    before = api["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert api["terminationGracePeriodSeconds"] > before + GRACE_SECONDS


def test_nginx_and_the_front_ends_agree() -> None:
    """On addresses, on the largest body, and on who closes an idle connection first."""
    conf = (DEPLOY / "nginx.conf").read_text()
    services = compose()["services"]
    addresses = {
        service["networks"]["front"]["ipv4_address"]
        for name, service in services.items()
        if name.startswith("api")
    }
    servers = (DEPLOY / "nginx" / "servers.conf").read_text()
    assert set(re.findall(r"^server ([\d.]+):8090 max_fails=1", servers, re.MULTILINE)) == addresses
    assert set(re.findall(r"^server ([\d.]+):8090 max_fails=0 backup", servers, re.MULTILINE)) == addresses
    most = re.search(r"client_max_body_size (\d+)m;", conf)
    assert most is not None
    assert int(most[1]) * 2**20 > Settings().max_image_body
    silence = re.search(r"proxy_read_timeout (\d+)s;", conf)
    assert silence is not None
    assert int(silence[1]) > Settings().stream_seconds
    (kept,) = re.findall(r"upstream turnstream \{.*?keepalive_timeout (\d+)s;", conf, re.DOTALL)
    assert int(kept) < KEEP_ALIVE_SECONDS, "a request would meet a connection that is being closed"


def test_scaling_reads_metrics_that_there_are() -> None:
    """Every metric in the autoscaler's queries is one of ours."""
    (scaled,) = (each for each in manifests() if each["kind"] == "ScaledObject")
    queries = " ".join(trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])
    read = set(re.findall(r"\bturnstream_[a-z_]+", queries))
    assert read
    assert read <= {gauge.name for gauge in metrics.GAUGES}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0].lower()


def _locked(path: Path) -> dict[str, str]:
    """Each package with its version and hashes."""
    entries = re.split(r"\n(?=\S)", path.read_text())
    return {_name(entry): re.sub(r" ;[^\\]*", "", entry).strip() for entry in entries if "==" in entry}


def test_the_operator_reaches_what_it_asks() -> None:
    """In Compose its container shares a network with each host that its addresses name, and has the admin key."""
    services = compose()["services"]
    operator = services["operator"]
    for name in ("TURNSTREAM_REDIS_URL", "TURNSTREAM_URL"):
        host = urlsplit(operator["environment"][name]).hostname
        assert host in services
        assert set(operator["networks"]) & set(services[host]["networks"]), host
    assert "turnstream_admin_key" in [each["target"] for each in operator["secrets"]]
