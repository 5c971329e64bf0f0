"""Every setting under one name: a flag, a VIVACE_* variable, a line of one TOML file.

The records in `config` are the only list of them. `max_sessions` is `max_sessions = 16` in the
file, VIVACE_MAX_SESSIONS and --max-sessions; what stands further right counts more. A field of
`Limits` has `limit_` before its name, one of `Profile` `profile_`; a field that two records share
is one setting.
"""

import ast
import difflib
import inspect
import os
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from vivace import config
from vivace.config import EngineConfig, Limits, Profile, ServerConfig, Start, profile_of
from vivace.errors import InvalidRequest, VivaceError

PREFIXES: Final = {Start: "", EngineConfig: "", ServerConfig: "", Limits: "limit_"} | {
    Profile: "profile_"
}
VARIABLE: Final = "VIVACE_"
FILE_VARIABLE: Final = "VIVACE_CONFIG"
# Variables that are no settings: where the file is, whether tracebacks are shown, two keys of
# `vivace bench`, and what our tests are told by.
OTHERS: Final = {FILE_VARIABLE, "VIVACE_DEBUG", "VIVACE_BENCH_KEY", "VIVACE_WER_KEY"} | {
    "VIVACE_CLIENTS",
    "VIVACE_CHROMIUM",
    "VIVACE_REFERENCE_PYTHON",
}
DEFAULT: Final = "default"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them. `type` is that of the value outside, without its None."""

    name: str
    type: Any
    default: object
    doc: str
    flag: str
    env: str
    record: type
    secret: bool = False  # has no flag, since everybody sees those, and is never shown

    @property
    def many(self) -> bool:
        """Does it hold several values, so that its flag may be given several times?"""
        return get_origin(self.type) in (tuple, Mapping)


@dataclass(frozen=True, slots=True)
class Effective:
    """What counts, and where each of it came from."""

    values: Mapping[str, object]
    sources: Mapping[str, str]
    start: Start
    engine: EngineConfig
    server: ServerConfig
    warnings: list[str] = field(default_factory=list)


@cache
def settings() -> Mapping[str, Setting]:
    """All of them by name, in the order of the records."""
    found: dict[str, Setting] = {}
    for record in PREFIXES:
        for setting in _of(record):
            found.setdefault(setting.name, setting)
    return found


def _of(record: type) -> Iterator[Setting]:
    hints, docs = get_type_hints(record), comments(config)[record.__name__]
    for f in fields(record):
        hint, name = _without_none(hints[f.name]), _name(record, f)
        if is_dataclass(hint) or f.metadata.get("fixed"):
            continue
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if (scale := f.metadata.get("scale")) is not None:
            default /= scale
        yield Setting(
            name,
            hint,
            default,
            docs[f.name],
            flag="--" + f.metadata.get("flag", name.replace("_", "-")),
            env=VARIABLE + name.upper(),
            record=record,
            secret=f.metadata.get("secret", False),
        )


def _name(record: type, f: "Field[Any]") -> str:
    name: str = f.metadata.get("name", PREFIXES[record] + f.name)
    return name


def _without_none(hint: Any) -> Any:
    if isinstance(hint, UnionType):
        hint, *more = (kind for kind in get_args(hint) if kind is not NoneType)
        assert not more, "a setting has one type"
    return hint


@cache
def comments(module: Any) -> Mapping[str, Mapping[str, str]]:
    """The comment at each field of each class of a module: behind it, or in the lines above it."""
    source = inspect.getsource(module)
    lines = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return {
        node.name: {
            item.target.id: _comment(lines, item)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _comment(lines: Mapping[int, tuple[str, bool]], item: ast.AnnAssign) -> str:
    for line in range(item.lineno, (item.end_lineno or item.lineno) + 1):
        if line in lines:
            return lines[line][0]
    above: list[str] = []
    line = item.lineno - 1
    while line in lines and lines[line][1]:
        above.insert(0, lines[line][0])
        line -= 1
    return " ".join(above)


def effective(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Effective:
    """What is in effect. `flags` holds those that were given, by the setting's name.

    Without `file`, the one that VIVACE_CONFIG names counts, if it names one.

    Raises:
        InvalidRequest: And its children: what cannot be read, or is out of range; says where.
        OSError: The file cannot be read.
    """
    values = {name: setting.default for name, setting in settings().items()}
    sources = dict.fromkeys(values, DEFAULT)
    if file is None and env.get(FILE_VARIABLE):
        file = Path(env[FILE_VARIABLE])
    levels = [_from_env(env), _from_flags(flags or {})]
    if file is not None:
        levels.insert(0, _from_file(file))
    for level in levels:
        for name, (value, source) in level.items():
            values[name], sources[name] = value, source
    return _built(values, sources, _unknown(env))


Level = dict[str, tuple[object, str]]  # values with their sources


def _from_file(path: Path) -> Level:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from None
    found: Level = {}
    for name, raw in content.items():
        if name not in settings():
            raise InvalidRequest(f"{path}: {name} is no setting{_near(name, settings())}")
        found[name] = _converted(settings()[name], raw, str(path), strict=True), str(path)
    return found


def _from_env(env: Mapping[str, str]) -> Level:
    """An empty variable is none."""
    return {
        setting.name: (_worded(setting, env[setting.env], setting.env), setting.env)
        for setting in settings().values()
        if env.get(setting.env)
    }


def _from_flags(flags: Mapping[str, object]) -> Level:
    found: Level = {}
    for name, raw in flags.items():
        setting = settings()[name]
        if raw is None or (setting.many and not raw):
            continue
        if get_origin(setting.type) is Mapping:
            assert isinstance(raw, list | tuple)
            raw = _pairs(raw, setting, setting.flag)  # noqa: PLW2901
        found[name] = _converted(setting, raw, setting.flag, strict=False), setting.flag
    return found


def _worded(setting: Setting, text: str, source: str) -> object:
    """A value from words; several stand between commas."""
    raw: object = text
    if setting.many:
        words = [word for word in map(str.strip, text.split(",")) if word]
        raw = words if get_origin(setting.type) is tuple else _pairs(words, setting, source)
    return _converted(setting, raw, source, strict=False)


def _pairs(words: list[str] | tuple[str, ...], setting: Setting, source: str) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            shown = "a secret" if setting.secret else repr(word)
            raise InvalidRequest(f"{source} takes NAME=VALUE; got {shown}.")
        pairs[name] = value
    return pairs


def _converted(setting: Setting, raw: object, source: str, *, strict: bool) -> object:
    """A value of the setting's type; words are read as numbers and yes or no where not `strict`."""
    try:
        return msgspec.convert(raw, setting.type, strict=strict, dec_hook=_path)
    except msgspec.ValidationError:
        shown = "a secret" if setting.secret else repr(raw)
        where = "" if source in (setting.env, setting.flag) else f": {setting.name}"
        raise InvalidRequest(f"{source}{where} must be {kind_of(setting)}; got {shown}.") from None


def _path(kind: type, raw: object) -> object:
    if kind is Path and isinstance(raw, str | Path):
        return Path(raw)
    raise TypeError  # which becomes a ValidationError


def kind_of(setting: Setting) -> str:
    """The type in words."""
    if get_origin(setting.type) is tuple:
        return "a list of strings"
    if get_origin(setting.type) is Mapping:
        return "a table of strings"
    if choices := get_args(setting.type):
        return "one of " + ", ".join(map(str, choices))
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return words.get(setting.type, "a path")


def _built(values: dict[str, object], sources: Mapping[str, str], warnings: list[str]) -> Effective:
    """The records of these values."""
    limits = _record(Limits, values, sources)
    start = _record(Start, values, sources)
    own = {n: values[n] for n in values if sources[n] != DEFAULT or not n.startswith("profile_")}
    profile = _record(Profile, own, sources, profile_of(start.profile))
    for f in fields(Profile):
        values[_name(Profile, f)] = getattr(profile, f.name)
    engine = _record(EngineConfig, values, sources, EngineConfig(limits=limits, profile=profile))
    server = _record(ServerConfig, values, sources, ServerConfig(limits=limits))
    return Effective(values, sources, start, engine, server, warnings)


def _record(
    record: Callable[..., R],
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    base: R | None = None,
) -> R:
    """`base`, or a fresh one, with those of the values that are its fields."""
    assert isinstance(record, type)
    names = {f: _name(record, f) for f in fields(record) if _is_plain(f)}
    own = {f.name: _inside(f, values[name]) for f, name in names.items() if name in values}
    try:
        return record(**own) if base is None else replace(base, **own)  # type: ignore[type-var]
    except VivaceError as error:
        name = next(name for f, name in names.items() if f.name == error.param)
        where = "" if sources[name] == DEFAULT else f" ({name} from {sources[name]})"
        error.message = f"{error.message}{where}"
        raise


def _is_plain(f: "Field[Any]") -> bool:
    return not is_dataclass(f.default_factory)  # but a record of other settings


def _inside(f: "Field[Any]", value: Any) -> Any:
    return value * f.metadata["scale"] if "scale" in f.metadata else value


def _unknown(env: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like a setting and is none."""
    known = {setting.env for setting in settings().values()} | OTHERS
    return [
        f"{name} is no setting{_near(name, known)}"
        for name in sorted(env)
        if name.startswith(VARIABLE) and name not in known
    ]


def _near(name: str, known: Mapping[str, object] | set[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else "."


def data_folder() -> Path:
    """Where this machine's user keeps what cannot be made again."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "vivace"
