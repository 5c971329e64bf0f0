"""What clusters are told, and the manifest that tells them."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from vivace.cluster import app
from vivace.cluster.command import cluster
from vivace.cluster.options import Options
from vivace.errors import InvalidRequest, Unprocessable, VivaceError

ROOT = Path(__file__).parents[2]
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy" / "kuberay.yaml").read_text("utf-8")))
SERVICE: dict[str, Any] = MANIFESTS[0]["spec"]


def test_the_manifest_runs_our_app_with_options_that_there_are() -> None:
    serve = ServeDeploySchema.model_validate(yaml.safe_load(SERVICE["serveConfigV2"]))
    (application,) = serve.applications
    assert application.import_path == f"{app.__module__}:{app.__name__}"
    options = Options.read(application.args)
    assert options.start.models == ("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",)
    assert (options.replicas, options.max_replicas, options.gpus) == (2, 4, 1.0)
    assert options.engine.max_sessions == 256


def test_the_manifest_has_a_card_for_each_replica_and_time_to_drain() -> None:
    options = Options.read(yaml.safe_load(SERVICE["serveConfigV2"])["applications"][0]["args"])
    (group,) = SERVICE["rayClusterConfig"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (worker,) = pod["containers"]
    cards = int(worker["resources"]["limits"]["nvidia.com/gpu"])
    assert group["minReplicas"] * cards >= options.replicas * options.gpus
    assert group["maxReplicas"] * cards >= options.max_replicas * options.gpus
    assert pod["terminationGracePeriodSeconds"] > options.server.drain_s
    claims = {m["metadata"]["name"] for m in MANIFESTS if m["kind"] == "PersistentVolumeClaim"}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] in claims
    head = SERVICE["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["image"] == worker["image"]
    assert {"containerPort": 8000, "name": "serve"} in head["ports"]


@pytest.mark.parametrize(
    ("args", "error", "names"),
    [
        ({"replica": 2}, InvalidRequest, "replica"),
        ({"replicas": 0}, Unprocessable, "replicas"),
        ({"replicas": "two"}, Unprocessable, "replicas"),
        ({"gpus": -1}, Unprocessable, "gpus"),
        ({"max_sessions": 0}, VivaceError, "max_sessions"),
        ({"profile": "slow"}, VivaceError, "slow"),
    ],
)
def test_options_that_are_wrong_are_refused_by_name(
    args: dict[str, Any], error: type[VivaceError], names: str
) -> None:
    with pytest.raises(error, match=names):
        Options.read(args)


def test_the_command_has_every_option_of_the_record() -> None:
    flags = set(inspect.signature(cluster).parameters) - {"chosen", "gates", "ray_address"}
    own = {name for name in Options.__dataclass_fields__ if name not in ("inside",)}
    assert flags == own - {"start", "engine", "server"}
    defaults = {name: p.default for name, p in inspect.signature(cluster).parameters.items()}
    assert all(defaults[name] == getattr(Options(), name) for name in flags)
