"""What the files of deploy/ say: their instructions, lines and start commands."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PLACE = "/opt/vivace/bin/"  # of the command, in the unit


@dataclass(slots=True)
class Stage:
    """One stage of a Dockerfile, with what it has from the one it is built on."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, arguments

    def last(self, instruction: str) -> str:
        return [rest for name, rest in self.steps if name == instruction][-1]

    @property
    def env(self) -> dict[str, str]:
        words = [word for name, rest in self.steps if name == "ENV" for word in shlex.split(rest)]
        return dict(word.split("=", 1) for word in words)

    @property
    def pips(self) -> list[str]:
        """Its own `pip install` lines, as a shell would run them."""
        runs = [re.sub(r"--mount=\S+\s+", "", rest) for name, rest in self.steps if name == "RUN"]
        return [run for run in runs if run.startswith("pip install")]


def dockerfile() -> dict[str, Stage]:
    """Its stages by name."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.M)
    stages: dict[str, Stage] = {}
    stage = Stage("")
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, own = rest.split()
            stage = stages[own] = Stage(base, list(stages[base].steps) if base in stages else [])
        elif line and stage.base:
            stage.steps.append((name, rest))
    return stages


def entry(stage: Stage) -> list[str]:
    """What a container starts, without the init before it."""
    init, dashes, *command = json.loads(stage.last("ENTRYPOINT"))
    assert (init, dashes) == ("tini", "--")
    return command


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))  # type: ignore[no-any-return]


def manifests(name: str = "kubernetes.yaml") -> dict[str, dict[str, Any]]:
    """Its objects by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / name).read_text("utf-8"))}


def pods(found: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in a manifest, however deep it lies."""
    if isinstance(found, dict) and "containers" in found:
        yield found
    elif isinstance(found, dict | list):
        for inner in found.values() if isinstance(found, dict) else found:
            yield from pods(inner)


def unit() -> dict[str, list[str]]:
    """The lines of the systemd unit: all values of each name."""
    lines: dict[str, list[str]] = {}
    for line in (DEPLOY / "vivace.service").read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            lines.setdefault(name, []).append(value)
    return lines


@dataclass(frozen=True, slots=True)
class Start:
    """One way in which vivace is started there."""

    args: list[str]  # of the command `vivace`
    env: dict[str, str] = field(default_factory=dict)


def starts() -> dict[str, Start]:
    """All of them."""
    image = dockerfile()["cuda"]
    (pod,) = pods(manifests())
    command, *args = shlex.split(unit()["ExecStart"][0])
    assert command == f"{PLACE}vivace"
    args = [arg.replace("/etc/vivace/", f"{DEPLOY}/") for arg in args]
    services = compose()["services"]
    return {
        "image": Start(json.loads(image.last("CMD")), image.env),
        "compose": Start(services["cuda"]["command"], image.env),
        "kubernetes": Start(pod["containers"][0]["args"], image.env),
        "systemd": Start(
            args, dict(one.split("=", 1) for one in " ".join(unit()["Environment"]).split())
        ),
    }
