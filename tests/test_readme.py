"""The Python in the README and the docs runs as it stands, and the commands in them exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[tuple[str, str]]:
    """Page and line of each Python block, and its code."""
    found = []
    for page in PAGES:
        if page.name == "socket.md":  # needs a server: tests/server/socket runs it
            continue
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 2
            found.append((f"{page.relative_to(ROOT)}:{line}", match.group(1)))
    return found


BLOCKS = blocks()


@pytest.mark.parametrize(("where", "code"), BLOCKS, ids=[where for where, _ in BLOCKS])
def test_python_block_runs(
    where: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, where, "exec"), {"__name__": "__main__"})
    for sound in tmp_path.glob("*.wav"):
        assert sound.stat().st_size > 10_000


def test_the_readme_has_its_example() -> None:
    assert any("Engine()" in code for where, code in BLOCKS if where.startswith("README.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= targets
