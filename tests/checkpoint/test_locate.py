from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

from vivace.checkpoint import locate as module
from vivace.checkpoint.locate import FILES, locate
from vivace.errors import CheckpointError

HUB_ID = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"
REPLY: Any = SimpleNamespace(headers={}, request=None, status_code=500)


def test_folder_is_itself(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "voice").mkdir()
    assert locate("~/voice") == tmp_path / "voice"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("/no/such/folder", "no folder '/no/such/folder'"),
        ("folder", "no folder 'folder'"),
        ("a/b/c", "no hub id"),
        ("a/b@", "no hub id"),
        ("", "no folder ''"),
        (__file__, "Give the folder that holds config.json"),
    ],
)
def test_neither_folder_nor_hub_id(model: str, expected: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CheckpointError) as caught:
        patch.chdir(tmp_path)
        locate(model)
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (HUB_ID, {}, (None, False)),
        (f"{HUB_ID}@v1.0", {}, ("v1.0", False)),
        (f"{HUB_ID}@v1.0", {"revision": "abc"}, ("abc", False)),
        (HUB_ID, {"revision": "abc", "offline": True}, ("abc", True)),
    ],
)
def test_hub_is_asked(
    model: str,
    options: dict[str, Any],
    expected: tuple[str | None, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {}

    def fetch(repo: str, **kw: object) -> str:
        asked.update(kw, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(module, "snapshot_download", fetch)
    assert locate(model, **options) == tmp_path
    assert asked["repo"] == HUB_ID
    assert (asked["revision"], asked["local_files_only"]) == expected


def test_only_needed_files_are_fetched() -> None:
    needed = [
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "preprocessor_config.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
        "tokenizer_config.json",
        "vocab.json",
    ]
    others = [".gitattributes", "README.md", "LICENSE", "pytorch_model.bin", "demo/voice.wav"]
    assert sorted(filter_repo_objects(needed + others, allow_patterns=FILES)) == needed


@pytest.mark.parametrize(
    ("error", "offline", "expected"),
    [
        (GatedRepoError("403", response=REPLY), False, "Accept its terms at"),
        (RepositoryNotFoundError("404", response=REPLY), False, "Check the name"),
        (HFValidationError("bad"), False, "Check the name"),
        (RevisionNotFoundError("404", response=REPLY), False, "no revision 'v9'"),
        (LocalEntryNotFoundError("no"), True, "offline is on"),
        (LocalEntryNotFoundError("no"), False, "cannot be reached"),
        (HfHubHTTPError("500 Server Error", response=REPLY), False, "500 Server Error"),
        (OSError(28, "No space left on device"), False, "No space left on device"),
        (RuntimeError("the network library's own"), False, "Try again"),
    ],
)
def test_hub_errors_say_what_to_do(
    error: Exception, offline: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(module, "snapshot_download", fail)
    with pytest.raises(CheckpointError) as caught:
        locate(HUB_ID, revision="v9", offline=offline)
    assert expected in caught.value.message
    assert HUB_ID in caught.value.message


@pytest.mark.parametrize("name", ["embedded", "vivace-embedded"])
def test_the_voice_in_the_box_has_a_name(name: str) -> None:
    assert (locate(name) / "config.json").is_file()


@pytest.mark.parametrize(
    ("offline", "expected"), [(True, "offline is on"), (False, "cannot be reached")]
)
def test_real_client_without_a_hub(
    offline: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(CheckpointError) as caught:
        locate(HUB_ID, offline=offline)
    assert expected in caught.value.message
    assert str(tmp_path) in caught.value.message
