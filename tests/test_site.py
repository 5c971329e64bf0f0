"""The documentation's site builds, holds together and asks nothing of other hosts."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"scripts_{name}", ROOT / "scripts" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    done = build(ROOT, to)
    assert done.returncode == 0, done.stderr
    return to


def test_every_page_is_built(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert built == written | {Path("index.md"), Path("contributing.md"), Path("404.md")}


def test_nothing_comes_from_another_host(site: Path) -> None:
    fetched = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?([^\"'\s>]+)"
    )
    pages = list(site.rglob("*.html"))
    names = {name for page in pages for name in fetched.findall(page.read_text(encoding="utf-8"))}
    assert len(names) > 5
    assert [name for name in names if re.match(r"(https?:)?//", name)] == []
    styles = " ".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", styles)


def test_the_readme_is_the_first_page(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert "<h1" in page and 'src="images/page.png"' in page
    assert 'href="http.html"' in page and 'href="contributing.html"' in page


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("orphan.md", "# Nobody knows it\n"),
        ("http.md", "\n[a page](nowhere.md)\n"),
        ("http.md", "\n[a place](socket.md#nowhere)\n"),
        ("http.md", "\n![a picture](images/nowhere.png)\n"),
    ],
    ids=["page without a place", "link", "anchor", "picture"],
)
def test_what_leads_nowhere_is_an_error(tmp_path: Path, page: str, text: str) -> None:
    for name in ("docs", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    with (tmp_path / "docs" / page).open("a", encoding="utf-8") as file:
        file.write(text)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert re.search(r"WARNING.*(nowhere|orphan)|orphan", done.stderr, re.DOTALL)


@pytest.mark.parametrize("name", ["configuration.md", "api.md"])
def test_a_page_that_is_made_is_as_it_would_be_made(name: str) -> None:
    made = script("reference").PAGES[name]()
    there = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert there == made, "run make docs-pages"


def test_every_setting_is_on_its_page() -> None:
    from vivace.settings import settings

    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(page.count(f"| `{name}`") == 1 for name in settings())


def test_files_that_are_no_pages_are_named() -> None:
    site = script("site")
    text = "[`agent.py`](../examples/agent.py), [it](../src/a.py), [a page](http.md#x), ![p](i.png)"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="socket.md"))
    assert site.on_page_markdown(text, page) == (
        "`examples/agent.py`, it (`src/a.py`), [a page](http.md#x), ![p](i.png)"
    )
    inner = SimpleNamespace(file=SimpleNamespace(src_uri="integrations/curl.md"))
    assert site.on_page_markdown("[HTTP](../http.md)", inner) == "[HTTP](../http.md)"


def test_a_page_of_the_top_moves_with_its_links() -> None:
    moved = script("site").moved
    text = "[a](docs/http.md) [b](CONTRIBUTING.md) [c](Makefile) [d](https://x.y) [e](#z)"
    assert moved(text) == (
        "[a](http.md) [b](contributing.md) [c](../Makefile) [d](https://x.y) [e](#z)"
    )


def test_planned_pages_wait_for_their_text() -> None:
    nav = [{"A": "a.md"}, {"B": [{"C": "c.md"}, {"D": "d.md"}]}]
    assert script("site").without(nav, {"c.md"}) == [{"A": "a.md"}, {"B": [{"D": "d.md"}]}]
