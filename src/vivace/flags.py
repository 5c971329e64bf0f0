"""Settings as flags of a command, and in its hands."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from vivace.settings import FILE_VARIABLE, Effective, Setting, effective, settings

ConfigFile = Annotated[
    Path | None,
    typer.Option(help=f"TOML file of settings; or {FILE_VARIABLE}.", metavar="FILE"),
]


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of these settings; without names, of all that may have one.

    The command gets what is in effect as its first argument, whether it has a flag here or not.
    """
    shown = [settings()[name] for name in names or settings() if not settings()[name].secret]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(*, config: Path | None = None, **given: Any) -> None:
            flags = {one.name: given.pop(one.name) for one in shown}
            chosen = effective(flags, os.environ, config)
            for warning in chosen.warnings:
                print("vivace:", warning, file=sys.stderr)
            command(chosen, **given)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*own, _parameter("config", ConfigFile), *map(_option, shown)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _option(setting: Setting) -> inspect.Parameter:
    """Its flag. None is one that was not given, so that variable and file count."""
    flag, kind, metavar = setting.flag, setting.type, None
    if kind is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    if setting.many:
        metavar = "NAME=VALUE" if get_origin(kind) is Mapping else "NAME"
        kind = list[str]
    option = typer.Option(
        flag,
        help=_help(setting),
        metavar=metavar,
        hidden=setting.name.startswith(("limit_", "profile_")),
    )
    return _parameter(setting.name, Annotated[kind | None, option])


def _help(setting: Setting) -> str:
    doc = setting.doc.rstrip(".")
    again = "; may be given again" if setting.many else ""
    default = "" if setting.default in (None, (), {}) else f" [{_shown(setting.default)}]"
    return f"{doc[:1].upper()}{doc[1:]}{again}.{default}"


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, float) else str(default)


def as_toml(chosen: Effective) -> str:
    """What is in effect as a config file, with where each line came from behind it.

    A value that there is not is a comment, and so is a secret.
    """
    lines = []
    for name, setting in settings().items():
        value, source = chosen.values[name], chosen.sources[name]
        if value is None:
            lines.append(f"# {name} =  # not set")
        elif setting.secret:
            lines.append(f"# {name} =  # not shown; {source}")
        else:
            lines.append(f"{name} = {_toml(value)}  # {source}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        pairs = (f"{_toml(name)} = {_toml(item)}" for name, item in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """A basic string of TOML, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
