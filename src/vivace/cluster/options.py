"""What a cluster is asked to be."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from vivace.config import EngineConfig, ServerConfig, Start
from vivace.errors import InvalidRequest, Unprocessable
from vivace.settings import Effective, effective, settings


@dataclass(frozen=True, slots=True)
class Options:
    """One record for the command, the importable app, the gate and the replicas."""

    replicas: int = 1  # engines, one to a card
    max_replicas: int = 0  # more than `replicas`: as many as the load needs, up to this
    gpus: float = 1.0  # cards of each replica; 0 puts it on the CPU
    cpus: float = 1.0  # cores that Ray sets aside for each replica
    lean: int = 8  # requests that a replica may have and still get those for a voice it knows
    inside: str = ""  # address on which replicas listen; without it, the node's own
    build: str = ""  # module:function that makes the engine's parts, for benchmarks and tests
    start: Start = field(default_factory=Start)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        for name, least in (("replicas", 1), ("max_replicas", 0), ("lean", 0), ("gpus", 0)):
            if getattr(self, name) < least:
                raise Unprocessable(f"{name} must be {least} or more", param=name)

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> Self:
        """From what Ray Serve hands over: fields of this record, and settings by their names.

        Raises InvalidRequest for what is neither, Unprocessable for a value that does not fit.
        """
        own: dict[str, Any] = {
            f.name: type(f.default) for f in fields(cls) if f.name not in _RECORDS
        }
        if unknown := sorted(set(args) - set(own) - set(settings())):
            near = difflib.get_close_matches(unknown[0], [*own, *settings()], 1)
            hint = f"; {near[0]} is meant?" if near else ""
            raise InvalidRequest(f"no option {unknown[0]!r}{hint}", param=unknown[0])
        given = {k: _listed(k, v) for k, v in args.items() if k not in own}
        chosen = effective(given, os.environ, None)
        read = {}
        for name in own.keys() & args.keys():
            try:
                read[name] = own[name](args[name])
            except (TypeError, ValueError):
                said = f"{name} must be a {own[name].__name__}; got {args[name]!r}"
                raise Unprocessable(said, param=name) from None
        return cls.of(chosen, **read)

    @classmethod
    def of(cls, chosen: Effective, **own: Any) -> Self:
        """With these settings for each engine and its edge."""
        return cls(**own, start=chosen.start, engine=chosen.engine, server=chosen.server)


def _listed(name: str, value: Any) -> Any:
    """One text where a setting takes several is the only one."""
    return [value] if settings()[name].many and isinstance(value, str) else value


_RECORDS = ("start", "engine", "server")
