"""Kept voices: found by id and name, whole or absent, refused where they are not as they should."""

import errno
import fcntl
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.voices.makers import clone, same

from vivace.errors import InvalidRequest, NotFound, TooLarge, Unavailable, Unprocessable
from vivace.types import Clone
from vivace.voices import folder as folder_module
from vivace.voices.kept import KIND, Consent, Kept, content_of
from vivace.voices.store import Making, Store

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(folder)


def keep(store: Store, name: str = "Anna", seed: int = 0, clip: bytes = b"flac") -> Kept:
    return store.add(Making(name), clone(seed), "tiny", clip)


def test_all_of_a_voice_is_there_after_a_restart(folder: Path) -> None:
    consent = Consent(id="cons_1", name="Anna A.", language="en", text="I agree.", created_s=5)
    making = Making(
        "Anna",
        description="Warm.",
        language="english",
        seed=2**63 - 1,
        instruct="Slowly.",
        labels={"accent": "northern"},
        consent=consent,
    )
    made = Store(folder, now_s=lambda: 1234.5).add(making, clone(), "tiny", b"a clip")
    again = Store(folder)
    found = again.get("anna")
    assert found.card == made.card
    assert same(found.clone, clone())
    assert found.clone.ref_text == "Hello."
    assert again.clip(found) == b"a clip"
    card = found.card
    assert (card.created_s, card.consent, card.seed) == (1234.5, consent, 2**63 - 1)
    assert (card.labels, card.origin) == ({"accent": "northern"}, "clip")


def test_a_voice_without_codes_or_clip(folder: Path) -> None:
    store = Store(folder)
    store.add(Making("x"), clone(ref_text=None), "tiny")
    kept = Store(folder).get("x")
    assert kept.clone.ref_codes is None
    assert store.clip(kept) == b""


def test_found_by_id_and_name_in_any_case(store: Store) -> None:
    kept = keep(store, "Änna Ö.")
    for name in (
        "Änna Ö.",
        "änna ö.",
        "ÄNNA Ö.",
        "A\u0308nna O\u0308.",
        kept.card.id,
        kept.card.id.upper(),
    ):
        assert store.find(name) is not None
    assert store.find("Anna") is None
    with pytest.raises(NotFound, match="Kept voices: Änna Ö"):
        store.get("../../x")


def test_case_29_content_is_of_the_sound_and_not_of_the_name(store: Store) -> None:
    one, other = keep(store, "a", seed=1), keep(store, "b", seed=1)
    assert one.card.content == other.card.content == content_of(clone(1))
    assert one.card.id != other.card.id
    assert keep(store, "c", seed=2).card.content != one.card.content
    plain = clone(1)
    assert plain.ref_codes is not None
    others = [
        Clone(plain.x_vector, plain.ref_codes, "Other words."),
        Clone(plain.x_vector, plain.ref_codes[:-1], plain.ref_text),
        Clone(plain.x_vector, plain.ref_codes.reshape(16, 12), plain.ref_text),
        Clone(plain.x_vector),
        Clone(plain.x_vector + 1, plain.ref_codes, plain.ref_text),
    ]
    assert len({content_of(plain), *map(content_of, others)}) == 6


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "x" * 65, "../../x", "/etc/passwd", "a/b", "a\\b", "C:x", ".hidden", "~root"),
        *("a\nb", "a\0b", "\u202eabc", "a|b", "a*"),
    ],
)
def test_case_37_names_that_are_none_or_paths_are_refused(store: Store, name: str) -> None:
    with pytest.raises(Unprocessable) as caught:
        keep(store, name)
    assert (caught.value.param, caught.value.code) == ("name", "bad_name")
    assert store.voices() == []


def test_one_name_one_voice(store: Store) -> None:
    keep(store, "Anna")
    with pytest.raises(Unprocessable, match="kept already") as caught:
        keep(store, "ANNA", seed=1)
    assert caught.value.code == "voice_exists"
    keep(store, "Bert", seed=1)
    with pytest.raises(Unprocessable):
        store.change("Bert", name="anna")
    store.change("Anna", name="ANNA")  # its own name in another case
    assert [kept.card.name for kept in store.voices()] == ["ANNA", "Bert"]


def test_changes_keep_id_sound_and_clip(folder: Path) -> None:
    store = Store(folder)
    made = keep(store, "Anna", clip=b"a clip")
    store.change("Anna", name="Berta", language="german", seed=7)
    kept = Store(folder).get("berta")
    assert (kept.card.id, kept.card.content) == (made.card.id, made.card.content)
    assert (kept.card.language, kept.card.seed) == ("german", 7)
    assert store.clip(kept) == b"a clip"
    assert store.find("Anna") is None


def test_removed_is_gone(folder: Path) -> None:
    store = Store(folder)
    keep(store)
    store.remove("anna")
    assert store.voices() == Store(folder).voices() == []
    with pytest.raises(NotFound):
        store.remove("anna")


def test_exported_and_taken_in_elsewhere(store: Store, tmp_path: Path) -> None:
    made = keep(store, "Anna", clip=b"a clip")
    data = store.export("anna")
    there = Store(tmp_path / "there")
    taken = there.take_in(data)
    assert taken.card == made.card
    assert there.clip(taken) == b"a clip"
    with pytest.raises(Unprocessable, match="kept already"):
        there.take_in(data)
    second = there.take_in(data, "Berta")
    assert second.card.id != made.card.id
    assert same(second.clone, made.clone)
    assert there.export("anna") == data


def test_an_export_is_safetensors_and_json(store: Store) -> None:
    keep(store)
    data = store.export("Anna")
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(head["__metadata__"][KIND])["name"] == "Anna"
    assert set(load(data)) == {"x_vector", "ref_codes", "clip"}


def _resummed(arrays: dict[str, np.ndarray], card: Any, **changes: Any) -> bytes:
    """With another vector or text that its card is right about."""
    vector = changes.pop("x_vector", arrays["x_vector"])
    card = card | changes
    content = content_of(Clone(vector, arrays["ref_codes"], card["ref_text"]))
    card |= {"content": content}
    return save(arrays | {"x_vector": vector}, {KIND: json.dumps(card)})


def _spoilt(data: bytes) -> dict[str, bytes]:
    """An exported voice, changed in ways that must not pass."""
    head_end = 8 + int.from_bytes(data[:8], "little")
    arrays, card = load(data), json.loads(json.loads(data[8:head_end])["__metadata__"][KIND])

    def with_card(**changes: object) -> bytes:
        return save(arrays, {KIND: json.dumps(card | changes)})

    def with_array(name: str, array: np.ndarray | None) -> bytes:
        others = {key: value for key, value in arrays.items() if key != name}
        return save(others if array is None else others | {name: array}, {KIND: json.dumps(card)})

    return {
        "nothing": b"",
        "noise": os.urandom(1024),
        "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
        "a length beyond the end": (1 << 62).to_bytes(8, "little") + data[8:],
        "cut short": data[:-1],
        "cut in its head": data[:40],
        "another kind": save(arrays, {"other": "{}"}),
        "no card": save(arrays),
        "no JSON": save(arrays, {KIND: "{"}),
        "a later version": with_card(version=2),
        "a path for an id": with_card(id="../../x"),
        "a path for a name": with_card(name="../../x"),
        "a number for a name": with_card(name=1),
        "a name too long": with_card(name="x" * 65),
        "another text": with_card(ref_text="Other words."),
        "no vector": with_array("x_vector", None),
        "a matrix": with_array("x_vector", np.zeros((2, 2), np.float32)),
        "not finite": with_array("x_vector", np.full(32, np.nan, np.float32)),
        "doubles": with_array("x_vector", np.zeros(32)),
        "too long a vector": with_array("x_vector", np.zeros(8193, np.float32)),
        "codes below zero": with_array("ref_codes", np.full((12, 16), -1, np.int16)),
        "no frames": with_array("ref_codes", np.zeros((0, 16), np.int16)),
        "too many frames": with_array("ref_codes", np.zeros((7501, 16), np.int16)),
        "floats for codes": with_array("ref_codes", np.zeros((12, 16), np.float32)),
        "a time that no calendar has": with_card(created_s=1e300),
        "a time before time": with_card(created_s=-1),
        "a seed below zero": with_card(seed=-1),
        "a seed too large": with_card(seed=2**63),
        "a long description": with_card(description="x" * 1001),
        "a long encoder": with_card(encoder="x" * 129),
        "a long language": with_card(language="x" * 65),
        "many labels": with_card(labels={str(n): "" for n in range(21)}),
        "long labels": with_card(labels={"x": "y" * 4096}),
        "a long consent": with_card(consent={"id": "", "name": "", "text": "x" * 1001}),
        "a consent at no time": with_card(consent={"id": "", "name": "", "created_s": 2**62}),
        "a clip of less than nothing": with_card(clip_bytes=-1),
        "codes without words": _resummed(arrays, card, ref_text=""),
        "a vector of nothing": _resummed(arrays, card, x_vector=np.zeros(32, np.float32)),
        "an endless vector": _resummed(arrays, card, x_vector=np.full(32, 1e30, np.float32)),
        "another vector": with_array("x_vector", np.ones(32, np.float32)),
    }


def test_what_is_no_whole_voice_is_not_taken_in(store: Store, tmp_path: Path) -> None:
    keep(store)
    there = Store(tmp_path / "there")
    for what, data in _spoilt(store.export("anna")).items():
        with pytest.raises(InvalidRequest):
            there.take_in(data)
            pytest.fail(what)
    assert there.voices() == []
    assert not list((tmp_path / "there").iterdir())


def test_spoilt_files_are_left_out_and_left_there(
    folder: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keep(store)
    good = store.export("anna")
    names = []
    for number, data in enumerate(_spoilt(good).values()):
        names.append(f"voice_{number:020x}.safetensors")
        (folder / names[-1]).write_bytes(data)
    (folder / "voice_copy.safetensors").write_bytes(good)  # another name than its card's
    again = Store(folder)
    assert [other.card.id for other in again.voices()] == [kept.card.id]
    assert "is left out" in caplog.text and "voice_copy" in caplog.text
    assert all((folder / name).exists() for name in names)


def test_what_another_process_changes_is_seen(folder: Path, store: Store) -> None:
    other = Store(folder)
    assert store.voices() == []
    keep(other, "Anna")
    assert store.find("anna") is not None
    other.change("anna", name="Berta")
    assert store.find("berta") is not None and store.find("anna") is None
    other.remove("berta")
    assert store.voices() == []


def test_bounds(folder: Path) -> None:
    store = Store(folder, most=2, most_bytes=5_000)
    with pytest.raises(TooLarge, match="5,000"):
        keep(store, clip=b"x" * 5_000)
    keep(store, "a")
    keep(store, "b", seed=1)
    with pytest.raises(Unprocessable) as caught:
        keep(store, "c", seed=2)
    assert caught.value.code == "too_many_voices"
    store.change("a", name="c")  # no more than before


def test_a_full_disk_changes_nothing(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store)
    before = sorted(path.name for path in folder.iterdir())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_module.os, "fsync", full)
    with pytest.raises(Unavailable, match="No space left"):
        keep(store, "Berta", seed=1)
    with pytest.raises(Unavailable, match="No space left"):
        store.change("anna", name="Berta")
    assert sorted(path.name for path in folder.iterdir()) == before
    assert [kept.card.name for kept in Store(folder).voices()] == ["Anna"]


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be used"):
        Store(tmp_path / "file" / "voices")


def test_files_are_for_their_owner_only(folder: Path, store: Store) -> None:
    kept = keep(store)
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / f"{kept.card.id}.safetensors").stat().st_mode & 0o077 == 0


def test_only_old_leftovers_are_swept(folder: Path, store: Store) -> None:
    old, new = folder / ".unfinished-old", folder / ".unfinished-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    Store(folder)
    assert new.exists() and not old.exists()


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_each_voice_is_whole_or_absent(folder: Path, seed: int) -> None:
    lines = random.Random(seed).randrange(1, 40)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.voices.makers", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(lines)]
    writer.kill()
    said += writer.communicate()[0].splitlines()
    told = {"added": set(), "renamed": set(), "removed": set()}
    for line in filter(str.strip, said):
        word, number = line.split()
        told[word].add(int(number))
    store = Store(folder)
    voices = {kept.card.name: kept for kept in store.voices()}
    files = list(folder.glob("*.safetensors"))
    assert len(voices) == len(files)  # none of them is left out
    for name, kept in voices.items():
        assert same(kept.clone, clone(int(name[1:])))
        assert store.clip(kept) == b"x" * 50_000
    numbers = {int(name[1:]) for name in voices}
    last = max(told["added"])
    assert told["added"] - told["removed"] - {last - 1, last} <= numbers
    assert not told["removed"] & numbers
    assert all(f"w{number}" in voices for number in told["renamed"] & numbers)
    keep(store, "after")  # and the lock is free


def ids(voices: list[Kept]) -> list[str]:
    return [kept.card.id for kept in voices]


def in_time(work: Callable[[], T]) -> T:
    """What it returns; a thread that hangs fails the test and not the run."""
    got: list[T] = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    thread.join(30)
    assert got, "it hangs"
    return got[0]


def test_who_reads_does_not_wait_for_who_changes(folder: Path, store: Store) -> None:
    kept = keep(store)
    with store._folder.changing():
        assert in_time(lambda: store.find("anna")) is kept
        assert ids(in_time(store.voices)) == [kept.card.id]
        assert in_time(lambda: store.clip(kept)) == b"flac"


def test_a_change_waits_for_another_process_only_so_long(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(store)
    monkeypatch.setattr(folder_module, "LOCK_S", 0.05)
    with (folder / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for change in (
            lambda: keep(store, "Berta", seed=1),
            lambda: store.change("anna", name="x"),
            lambda: store.remove("anna"),
        ):
            with pytest.raises(Unavailable) as caught:
                change()
            assert caught.value.code == "storage_busy"
        assert ids(store.voices()) == [kept.card.id]
    store.change("anna", name="Berta")


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "nothing"])
def test_only_regular_files_are_opened(folder: Path, store: Store, kind: str) -> None:
    kept, path = keep(store), folder / "voice_00000000000000000000.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        if kind == "link":
            os.mkfifo(folder / "pipe")
        path.symlink_to(folder / "pipe")
    assert ids(in_time(store.voices)) == [kept.card.id]
    assert ids(in_time(lambda: Store(folder).voices())) == [kept.card.id]


def test_a_voice_whose_file_is_gone_is_not_found(folder: Path, store: Store) -> None:
    kept = keep(store)
    records = {kept.card.id: kept}
    store._folder.path(kept.card.id).unlink()
    store._folder.records = lambda: records  # type: ignore[method-assign]  # it goes after the look
    for use in (
        lambda: store.clip(kept),
        lambda: store.export("anna"),
        lambda: store.renew("anna", clone(1), "tiny"),
        lambda: store.change("anna", name="Berta"),
    ):
        with pytest.raises(NotFound):
            use()


def test_a_folder_that_goes_bad_leaves_what_is_known(
    folder: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keep(store)
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("no folder")
    assert ids(store.voices()) == [kept.card.id] == ids(store.voices())
    assert caplog.text.count("cannot be read") == 1
    with pytest.raises(Unavailable) as caught:
        keep(store, "Berta", seed=1)
    assert str(folder) not in caught.value.message
