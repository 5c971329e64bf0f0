"""The files of deploy/: what checkers say of them, and whether they fit vivace and each other."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from tests.commands import Run
from tests.deploy.files import (
    DEPLOY,
    PLACE,
    ROOT,
    compose,
    dockerfile,
    entry,
    manifests,
    pods,
    starts,
    unit,
)

from vivace.cli import DEVICE_LOST, ENGINE_LOST, USERS_MISTAKE
from vivace.settings import effective, settings

TARGETS = pytest.mark.parametrize("target", ["cpu", "cuda"])
DRAIN_S = effective(env={}).server.drain_s


@pytest.mark.parametrize("start", starts())
def test_every_start_is_one_that_vivace_understands(
    start: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`vivace config` reads what `vivace serve` would, and warns of variables that are none."""
    how = starts()[start]
    for name, value in how.env.items():
        monkeypatch.setenv(name, value)
    assert how.args[0] == "serve"
    status, out, err = run("config", *how.args[1:])
    assert (status, err) == (0, "")
    assert ('host = "0.0.0.0"' in out) == ("VIVACE_HOST" in how.env)


def test_every_variable_that_is_named_is_a_setting() -> None:
    known = {setting.env for setting in settings().values()} | {"VIVACE_CONFIG"}
    for path in DEPLOY.iterdir():
        named = set(re.findall(r"\bVIVACE_[A-Z_]+", path.read_text("utf-8")))
        assert named <= known, path.name


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(hadolint), "--no-color", "--failure-threshold", "style", "Dockerfile"]
    checked = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert (checked.stdout, checked.returncode) == ("", 0)


@TARGETS
def test_an_image_has_no_rights_and_keeps_what_it_fetches(target: str) -> None:
    stage = dockerfile()[target]
    user, group = stage.last("USER").split(":")
    assert stage.steps[-1][0] == "USER"
    assert int(user) == int(group) != 0
    (volume,) = (rest for name, rest in stage.steps if name == "VOLUME")
    for name in ("HF_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TRITON_CACHE_DIR"):
        assert stage.env[name].startswith(f"{volume}/")
    assert entry(stage) == ["vivace"]
    assert "ARG PYTHON=3." in (DEPLOY / "Dockerfile").read_text("utf-8")


@TARGETS
def test_an_image_takes_its_packages_as_they_are_pinned(target: str) -> None:
    pips = dockerfile()[target].pips
    assert len(pips) == 2  # torch, then the rest: a change of the code leaves torch's layer alone
    assert all("-c /opt/vivace/constraints.txt" in pip for pip in pips)


def test_the_images_get_all_that_is_copied_into_them() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split("\n")
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    copies = [r for s in dockerfile().values() for name, r in s.steps if name == "COPY"]
    copied = {name for line in copies for name in line.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_compose_is_by_its_specification() -> None:
    spec = PyCompose.from_yaml(yaml.safe_dump(compose())).to_spec()
    assert set(spec.services or {}) == {"cuda", "cpu", "prometheus", "grafana"}


def test_compose_builds_what_there_is_and_lets_streams_end() -> None:
    for name in ("cuda", "cpu"):
        service = compose()["services"][name]
        assert service["build"]["target"] == name == service["profiles"][0]
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert int(service["stop_grace_period"].removesuffix("s")) > DRAIN_S
        data = dockerfile()[name].last("VOLUME")
        assert f"data:{data}" in service["volumes"]
    devices = compose()["services"]["cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_compose_opens_no_port_to_strangers_and_mounts_files_that_there_are() -> None:
    for service in compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose()["volumes"] or (DEPLOY / source).is_file()


def test_prometheus_asks_vivace_and_has_its_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert [host] == compose()["services"]["cuda"]["networks"]["default"]["aliases"]
    assert int(port) == settings()["port"].default
    assert f'up{{job="{job["job_name"]}"}}' in (DEPLOY / "alerts.yml").read_text("utf-8")
    (rules,) = config["rule_files"]
    assert f"./alerts.yml:{rules}:ro" in compose()["services"]["prometheus"]["volumes"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    contents = {name: yaml.safe_load(one["content"]) for name, one in compose()["configs"].items()}
    (source,) = contents["sources"]["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    folder = contents["dashboards"]["providers"][0]["options"]["path"]
    grafana = compose()["services"]["grafana"]
    assert f"./grafana.json:{folder}/vivace.json:ro" in grafana["volumes"]
    assert {one["source"] for one in grafana["configs"]} == set(contents)


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
def test_kubernetes_is_by_its_schemas(version: str) -> None:
    for manifest in manifests().values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_pod_lets_streams_end_and_keeps_what_it_fetches() -> None:
    (pod,) = pods(manifests())
    (container,) = pod["containers"]
    _, pause_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(pause_s) + DRAIN_S
    image = dockerfile()["cuda"]
    ids = pod["securityContext"]
    assert image.last("USER") == f"{ids['runAsUser']}:{ids['runAsGroup']}"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"data": image.last("VOLUME"), "tmp": "/tmp"}
    claim = manifests()["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim


def test_a_service_of_our_name_does_not_set_our_port() -> None:
    """For a Service named vivace Kubernetes sets VIVACE_PORT=tcp://... unless told not to."""
    found = [*pods(manifests()), *pods(manifests("kuberay.yaml"))]
    assert len(found) == 3
    assert all(pod["enableServiceLinks"] is False for pod in found)


def test_a_pod_is_asked_at_routes_that_there_are() -> None:
    (pod,) = pods(manifests())
    (container,) = pod["containers"]
    paths = {k: container[f"{k}Probe"]["httpGet"]["path"] for k in ("startup", "readiness")}
    assert paths == dict.fromkeys(paths, "/ready")
    alive = container["livenessProbe"]
    assert alive["httpGet"]["path"] == "/health"
    # Else the pod would be killed while the engine is being replaced.
    assert alive["failureThreshold"] * alive["periodSeconds"] >= 120
    (service,) = manifests()["Service"]["spec"]["ports"]
    assert service["targetPort"] == container["ports"][0]["name"]
    assert container["ports"][0]["containerPort"] == settings()["port"].default


def test_the_unit_restarts_what_a_restart_mends() -> None:
    lines = unit()
    assert lines["Restart"] == ["on-failure"]
    assert lines["RestartForceExitStatus"] == [f"{ENGINE_LOST} {DEVICE_LOST}"]
    assert lines["RestartPreventExitStatus"] == [str(USERS_MISTAKE)]
    assert int(lines["TimeoutStopSec"][0]) > DRAIN_S
    assert lines["NoNewPrivileges"] == ["yes"]
    assert "ExecReload" not in lines


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    """It also looks for the command, so that is the one here."""
    text = (DEPLOY / "vivace.service").read_text("utf-8")
    (tmp_path / "vivace.service").write_text(
        text.replace(PLACE, "/bin/").replace("/vivace serve", "/true")
    )
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "vivace.service")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.stderr, checked.returncode) == ("", 0)


def test_the_health_check_is_one_word_of_json() -> None:
    command = dockerfile()["cpu"].last("HEALTHCHECK").partition("CMD ")[2]
    python, dash_c, program = json.loads(command)
    assert (python, dash_c) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")
