"""The files behind the page, without a browser."""

import re
from collections.abc import Iterator

import httpx
import pytest
from tests.fakes import FakeEngine
from tests.server.live import serving

from vivace.server.page.routes import STATIC

FILES = sorted(path.name for path in STATIC.iterdir())
COLOURS = re.findall(
    r":root \{(.*?)\}", (STATIC / "style.css").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(FakeEngine()) as live, httpx.Client(base_url=live.url) as client:
        yield client


def assert_guarded(reply: httpx.Response) -> None:
    assert reply.headers["content-security-policy"].startswith("default-src 'self'")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_guarded_and_again_for_nothing(
    client: httpx.Client, name: str
) -> None:
    reply = client.get(f"/page/{name}")
    assert reply.content == (STATIC / name).read_bytes()
    kinds = {"js": "javascript", "html": "text/html", "css": "text/css", "svg": "image/svg+xml"}
    assert kinds[name.rpartition(".")[2]] in reply.headers["content-type"]
    assert_guarded(reply)
    again = client.get(f"/page/{name}", headers={"if-none-match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_root_is_a_page_for_browsers_only(client: httpx.Client) -> None:
    page = client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.text.startswith("<!doctype html>")
    assert_guarded(page)
    about = client.get("/")
    assert about.json()["languages"][:2] == ["auto", "chinese"]
    assert page.headers["vary"] == about.headers["vary"] == "accept"


def test_the_routes_it_names_are_there(client: httpx.Client) -> None:
    routes = client.get("/").json()["routes"]
    assert {"/metrics", "/v1/audio/styles"} <= set(routes)
    assert {route: client.get(route).status_code for route in routes} == dict.fromkeys(routes, 200)


@pytest.mark.parametrize("path", ["/page/", "/page/routes.py", "/page/..%2froutes.py", "/page/x"])
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_the_page_names_its_own_files_only() -> None:
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert named and all(name.removeprefix("page/") in FILES for name in named)
    assert not re.search(r"<style|<script>|\son\w+=|\sstyle=", html)  # the policy forbids them


def test_the_page_stays_small() -> None:
    assert (
        sum((STATIC / name).stat().st_size for name in FILES) < 48_000
    )  # as it lies here; nothing is packed


def luminance(colour: str) -> float:
    """WCAG 2: the relative luminance of #rgb or #rrggbb."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("block", COLOURS, ids=["light", "dark"])
def test_the_colours_can_be_read(block: str) -> None:
    colour = dict(re.findall(r"--([\w-]+): (#\w+)", block))
    for text, ground in (
        *((text, ground) for text in ("ink", "muted") for ground in ("paper", "card", "code")),
        ("on-accent", "accent"),
        ("accent", "card"),
        ("bad", "card"),
    ):
        dark, light = sorted((luminance(colour[text]), luminance(colour[ground])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
