"""The page at `/`: static files, and what the loaded checkpoint can do."""

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from vivace.engine import Engine

STATIC: Final = Path(__file__).parent / "static"
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",  # a new version is seen at once; unchanged files cost a 304
}


def page_routes(engine: "Engine") -> list[BaseRoute]:
    """`/` is the page for a browser and JSON for any other client; the page's files are beside."""

    async def root(request: Request) -> Response:
        """This server in few words: a page for browsers, JSON for other clients."""
        if "text/html" in request.headers.get("accept", ""):
            response: Response = FileResponse(STATIC / "index.html", headers=HEADERS)
        else:
            response = JSONResponse(about(engine))
        response.headers["vary"] = "accept"
        return response

    return [Route("/", root), Mount("/page", PageFiles(directory=STATIC))]


class PageFiles(StaticFiles):
    """Static files under the page's security headers."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, or 304."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def about(engine: "Engine") -> dict[str, object]:
    """What this is and what it takes; `instructions` is none, optional or required."""
    wishes = {"voice_design": "required", "custom_voice": "optional"}
    follows = engine.spec.size == "1b7"  # smaller ones were trained without instructions
    return {
        "vivace": version("vivace"),
        "model": engine.model_id,
        "models": [model.model_id for model in engine.models],
        "speak": 'POST /v1/audio/speech {"input": "Hello."}',
        "languages": ["auto", *(name for name in engine.languages if name != "auto")],
        "instructions": wishes.get(engine.spec.kind, "none") if follows else "none",
        "routes": [
            "/v1/models",
            "/v1/audio/models",
            "/v1/audio/voices",
            "/v1/audio/styles",
            "/health",
            "/ready",
            "/metrics",
            "/openapi.json",
        ],
    }
