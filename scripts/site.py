"""Hooks of mkdocs: the README is the first page; what lies outside docs/ is named, not linked."""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).resolve().parent.parent
FROM_THE_TOP = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that are planned keep their place in the navigation and are left out of it for now."""
    absent = {name for name in config.extra["planned"] if not Path(config.docs_dir, name).exists()}
    for name in sorted(absent):
        log.info("%s is planned and not there yet", name)
    config.nav = without(config.nav or [], absent)
    return config


def without(nav: list[Any], absent: set[str]) -> list[Any]:
    """The navigation without some pages."""
    kept = []
    for item in nav:
        ((title, inside),) = item.items()
        if isinstance(inside, list):
            kept.append({title: without(inside, absent)})
        elif inside not in absent:
            kept.append(item)
    return kept


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the top of the repository."""
    for name, source in FROM_THE_TOP.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=moved(text)))
    return files


def moved(text: str) -> str:
    """A page of the top as if it lay in docs/."""
    text = re.sub(r"\]\((?!https?:|#|docs/)", "](../", text).replace("](docs/", "](")
    for name, source in FROM_THE_TOP.items():
        text = text.replace(f"](../{source})", f"]({name})")
    return text


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links to files of the repository that are no pages become their names."""
    folder = posixpath.dirname(page.file.src_uri)

    def name(link: re.Match[str]) -> str:
        words, path = link[1].strip("`"), posixpath.normpath(posixpath.join(folder, link[2]))
        if not path.startswith("../"):
            return link[0]
        path = path.removeprefix("../")
        return f"`{path}`" if path.endswith(words) else f"{words} (`{path}`)"

    return LINK.sub(name, markdown)
