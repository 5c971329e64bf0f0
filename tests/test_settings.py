"""Settings from flags, variables and a file."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest
from tests.commands import Run, one_line

from vivace.config import PROFILES, EngineConfig, Limits, Profile, ServerConfig, Start
from vivace.errors import InvalidRequest
from vivace.flags import as_toml
from vivace.settings import OTHERS, VARIABLE, Setting, effective, settings

EDGE = {f.name for f in fields(ServerConfig)}
EACH = pytest.mark.parametrize("setting", settings().values(), ids=list(settings()))


def other(setting: Setting) -> object:
    """A legal value that is not the default, as a TOML file has it."""
    picked = {
        "port": 9,
        "profile": "ttfa",
        "max_context": 4096,
        "limit_temperature_max": 1.5,
        "profile_margin": 2.5,
        "profile_full": 0.5,
        "profile_first_frames": 2,
        "profile_chunk_frames": 6,
        "cors_origins": ["https://a.example", "http://localhost:3000"],
    }
    if setting.name in picked:
        return picked[setting.name]
    kind = get_origin(setting.type) or setting.type
    if choices := get_args(setting.type) if kind not in (tuple, Mapping) else ():
        return next(choice for choice in choices if choice != setting.default)
    if kind in (int, float):
        return (setting.default or 0) + 1  # type: ignore[operator]
    made = {bool: not setting.default, str: "x", Path: "/tmp/x", tuple: ["a", "b"]}
    return made.get(kind, {"a": "b", "c": "d"})


def in_words(value: object) -> str:
    """The same as a variable has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items())
    return str(value)


def same(setting: Setting, got: object, value: object) -> bool:
    return got == (tuple(value) if isinstance(value, list) else value) or got == Path(str(value))


def file_of(folder: Path, text: str) -> Path:
    path = folder / "vivace.toml"
    path.write_text(text, encoding="utf-8")
    return path


def line_of(setting: Setting) -> str:
    chosen = effective({}, {setting.env: in_words(other(setting))})
    found = re.search(rf"^{setting.name} = .*$", as_toml(chosen), re.MULTILINE)
    assert found
    return found.group()


def test_every_field_is_a_setting_or_says_why_not() -> None:
    names = set(settings())
    for record, prefix in ((Start, ""), (EngineConfig, ""), (ServerConfig, ""), (Limits, "limit_")):
        hints = get_type_hints(record)
        for f in fields(record):
            if not (is_dataclass(hints[f.name]) or f.metadata.get("fixed")):
                assert f.metadata.get("name", prefix + f.name) in names
    assert {f"profile_{f.name}" for f in fields(Profile)} <= names


@EACH
def test_it_is_documented(setting: Setting) -> None:
    assert len(setting.doc) > 8


@EACH
def test_a_variable_sets_it(setting: Setting) -> None:
    value = other(setting)
    chosen = effective({}, {setting.env: in_words(value)})
    assert same(setting, chosen.values[setting.name], value)
    assert chosen.sources[setting.name] == setting.env
    assert chosen.warnings == []


@EACH
def test_a_line_of_the_file_sets_it(setting: Setting, tmp_path: Path) -> None:
    if setting.secret:
        return
    path, value = file_of(tmp_path, line_of(setting)), other(setting)
    chosen = effective({}, {}, path)
    assert same(setting, chosen.values[setting.name], value)
    assert chosen.sources[setting.name] == str(path)


@EACH
def test_its_flag_sets_it(run: Run, setting: Setting) -> None:
    value = other(setting)
    if setting.secret:
        assert run("serve", setting.flag, "x")[0] == 2
        return
    given: list[object] = [f"{setting.flag}={value}"]
    if isinstance(value, bool):
        given = [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
    elif isinstance(value, list):
        given = [f"{setting.flag}={item}" for item in value]
    elif isinstance(value, dict):
        given = [f"{setting.flag}={name}={item}" for name, item in value.items()]
    status, out, err = run("config", *given)
    assert (status, err) == (0, "")
    assert line_of(setting).rpartition("  # ")[0] + f"  # {setting.flag}" in out.splitlines()


def test_a_value_reaches_every_record_that_has_it() -> None:
    chosen = effective({"stall_s": 7.0, "limit_text_chars": 9, "profile_step_s": 0.5}, {})
    assert chosen.engine.stall_s == chosen.server.stall_s == 7.0
    assert chosen.engine.limits == chosen.server.limits == Limits(text_chars=9)
    assert chosen.engine.profile == Profile(step_s=0.5)


def test_units_outside_are_turned_into_those_inside() -> None:
    assert effective({"slo_ttfa_ms": 250.0}, {}).engine.slo_ttfa_s == 0.25


def test_without_anything_the_defaults_count() -> None:
    chosen = effective({}, {})
    assert (chosen.start, chosen.server) == (Start(), ServerConfig())
    assert chosen.engine == EngineConfig()
    assert set(chosen.sources.values()) == {"default"}


def test_flag_before_variable_before_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, "port = 1\nmax_queue = 1\nmax_sessions = 1\n")
    env = {"VIVACE_PORT": "2", "VIVACE_MAX_QUEUE": "2", "VIVACE_CONFIG": str(path)}
    chosen = effective({"port": 3, "host": None}, env)
    names = ("port", "max_queue", "max_sessions", "host")
    assert [chosen.values[name] for name in names] == [3, 2, 1, "127.0.0.1"]
    sources = ["--port", "VIVACE_MAX_QUEUE", str(path), "default"]
    assert [chosen.sources[name] for name in names] == sources


def test_the_flag_names_the_file_before_the_variable(tmp_path: Path) -> None:
    path = file_of(tmp_path, "port = 1")
    assert effective({}, {"VIVACE_CONFIG": "/nowhere.toml"}, path).start.port == 1


def test_numbers_of_a_profile_go_over_it() -> None:
    chosen = effective({}, {"VIVACE_PROFILE": "throughput", "VIVACE_PROFILE_STEP_S": "0.25"})
    assert chosen.engine.profile.step_s == 0.25
    assert chosen.engine.profile.fill == PROFILES["throughput"].fill
    assert chosen.values["profile_fill"] == PROFILES["throughput"].fill


def test_an_empty_variable_is_none() -> None:
    assert effective({}, {"VIVACE_PORT": ""}).start.port == 8000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "prot is no setting; did you mean port?"),
        ("xyzzy = 1", "xyzzy is no setting."),
        ("[limits]\ntext_chars = 1", "limits is no setting"),
        ('port = "8000"', "port must be a whole number; got '8000'"),
        ("port = 1.5", "port must be a whole number; got 1.5"),
        ("port = true", "port must be a whole number; got True"),
        ("trim = 1", "trim must be true or false; got 1"),
        ("host = 1", "host must be a string; got 1"),
        ("stall_s = '1'", "stall_s must be a number; got '1'"),
        ("trace = 1", "trace must be a path; got 1"),
        ("model_aliases = 'a'", "model_aliases must be a list of strings; got 'a'"),
        ("voice_aliases = {a = 1}", "voice_aliases must be a table of strings"),
        ("port = 70000", "port must be 0 to 65535; got 70000"),
        ("stall_s = nan", "stall_s must be 0.1 or more; got nan"),
        ("stall_s = inf", "stall_s must be 0.1 or more; got inf"),
        ("max_sessions = 0", "max_sessions must be 1 or more; got 0 (max_sessions from "),
        ("limit_text_chars = 0", "text_chars must be 1 or more; got 0 (limit_text_chars from "),
        ("profile = 'fast'", "no profile 'fast'"),
        ("profile_chunk_frames = 99", "chunk_frames must be from first_frames"),
        ("port = ", "is not TOML"),
        ("port = 1\nport = 2", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    path = file_of(tmp_path, text)
    with pytest.raises(InvalidRequest) as refused:
        effective({}, {}, path)
    assert words in refused.value.message
    assert str(path) in refused.value.message


def test_no_time_to_wait_for_a_client_is_so_short_that_chance_decides() -> None:
    """Every time of the edge, but for the one of which none at all has a meaning."""
    times = {name for name in settings() if name.endswith("_s") and name in EDGE}
    for name in sorted(times - {"drain_s"} | {"limit_clip_decode_s"}):
        for given in ("0", "0.01", "-1"):
            with pytest.raises(InvalidRequest, match=r"must be 0\.1 or more"):
                effective({name: float(given)}, {})
    assert effective({"drain_s": 0}, {}).server.drain_s == 0


@pytest.mark.parametrize(
    "origin",
    [
        *("https://a.example", "http://localhost:3000", "http://[::1]:8000", "https://[::1]"),
        *("https://a.example:8443", "*", "null", "chrome-extension://abcdef"),
    ],
)
def test_an_origin_as_browsers_send_it(origin: str) -> None:
    assert effective({"cors_origins": (origin,)}, {}).server.cors_origins == (origin,)


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("https://a.example/", "browsers send https://a.example, and never https://a.example/"),
        ("https://a.example/app?x#y", "browsers send https://a.example, "),
        ("https://A.example", "browsers send https://a.example, "),
        ("https://a.example:443", "browsers send https://a.example, "),
        ("http://a.example:80/", "browsers send http://a.example, "),
        ("http://[::1]:8000/", "browsers send http://[::1]:8000, "),
        ("https://me@a.example", "browsers send https://a.example, "),
        ("https://*.example", "must be * or such as https://example.com"),
        ("https://a.example ", "such as https://example.com"),
        ("a.example", "such as https://example.com; got 'a.example'"),
        ("a.example:8000", "such as https://example.com"),
        ("https://", "such as https://example.com"),
        ("https://a.example:x", "such as https://example.com"),
        ("https://[::1", "such as https://example.com"),
        ("https://ä.example", "such as https://example.com"),
        ("", "such as https://example.com"),
    ],
)
def test_an_origin_that_could_never_match_is_refused(origin: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        effective({"cors_origins": ("https://b.example", origin)}, {})
    assert words in refused.value.message


def test_a_file_of_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vivace.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="is not TOML"):
        effective({}, {}, path)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"VIVACE_PORT": "x"}, "VIVACE_PORT must be a whole number; got 'x'"),
        ({"VIVACE_TRIM": "maybe"}, "VIVACE_TRIM must be true or false; got 'maybe'"),
        ({"VIVACE_VOICE_ALIASES": "nova"}, "VIVACE_VOICE_ALIASES takes NAME=VALUE; got 'nova'"),
        ({"VIVACE_MAX_SESSIONS": "0"}, "(max_sessions from VIVACE_MAX_SESSIONS)"),
        ({"VIVACE_SLO_TTFA_MS": "-1"}, "(slo_ttfa_ms from VIVACE_SLO_TTFA_MS)"),
    ],
)
def test_a_bad_variable_is_refused_with_its_name(env: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        effective({}, env)
    assert words in refused.value.message


def test_a_secret_is_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_API_KEYS", "amy=hush-hush-hush-hush")
    status, out, _ = run("config")
    assert status == 0
    assert "# api_keys =  # not shown; VIVACE_API_KEYS" in out
    assert "hush" not in out
    monkeypatch.setenv("VIVACE_API_KEYS", "hush-hush-hush-hush")
    status, out, err = run("serve")
    assert (status, out) == (2, "")
    assert "hush" not in one_line(err)
    monkeypatch.setenv("VIVACE_API_KEYS", "amy=hush")
    status, _, err = run("serve")
    assert status == 2
    assert "16 or more" in one_line(err)


def test_an_unknown_variable_is_a_warning() -> None:
    chosen = effective({}, {"VIVACE_PROT": "1", **dict.fromkeys(OTHERS - {"VIVACE_CONFIG"}, "1")})
    assert chosen.warnings == ["VIVACE_PROT is no setting; did you mean VIVACE_PORT?"]


def test_variables_in_the_code_are_settings_or_known() -> None:
    root = Path(__file__).parent.parent
    known = {setting.env for setting in settings().values()} | OTHERS
    for path in [*root.glob("src/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md"]:
        found = re.findall(rf"{VARIABLE}[A-Z][A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))
        assert set(found) <= known, path


def test_what_is_shown_is_a_file_that_gives_the_same(tmp_path: Path) -> None:
    shown = as_toml(effective({}, {"VIVACE_VOICE_ALIASES": 'a="x y"', "VIVACE_HOST": "é\\\x7f"}))
    again = effective({}, {}, file_of(tmp_path, shown))
    assert again.values["host"] == "é\\\x7f"
    assert again.values["voice_aliases"] == {"a": '"x y"'}
    assert set(tomllib.loads(shown)) <= set(settings())
    assert {again.sources[name] for name in tomllib.loads(shown)} == {str(tmp_path / "vivace.toml")}


def test_the_command_says_in_one_line_what_is_wrong(
    run: Run,
    tmp_path: Path,
) -> None:
    status, out, err = run("serve", "--config", file_of(tmp_path, "prot = 1"))
    assert (status, out) == (2, "")
    assert "did you mean port?" in one_line(err)
    status, _, err = run("serve", "--config", tmp_path / "no.toml")
    assert status == 2
    assert "no.toml: No such file" in one_line(err)


def test_the_command_warns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_PROT", "1")
    status, out, err = run("config")
    assert status == 0
    assert "VIVACE_PROT is no setting" in one_line(err)
    assert "port = 8000  # default" in out


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(VARIABLE):
            monkeypatch.delenv(name)
