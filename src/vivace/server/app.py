"""The routes of the HTTP server."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from vivace.config import ServerConfig
from vivace.errors import VivaceError
from vivace.server.body import read_json
from vivace.server.names import models
from vivace.server.order import read_order
from vivace.server.page.routes import page_routes
from vivace.server.replies import WithRequestId, failed, not_routed, refused
from vivace.server.speaking import Speaking

if TYPE_CHECKING:
    from vivace.engine import Engine


def create_app(
    engine: "Engine",
    config: ServerConfig | None = None,
    *,
    draining: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The ASGI app that serves one engine; `draining` says that the server is going down."""
    routes = Routes(engine, config or ServerConfig(), draining)
    app = Starlette(
        routes=[
            *page_routes(engine),
            Route("/health", routes.health),
            Route("/ready", routes.ready),
            Route("/v1/models", routes.models),
            Route("/v1/audio/models", routes.audio_models),
            Route("/v1/audio/voices", routes.voices),
            Route("/v1/audio/speech", routes.speech, methods=["POST"]),
        ],
        exception_handlers={VivaceError: refused, HTTPException: not_routed, Exception: failed},
    )
    return WithRequestId(app)


class Routes:
    """One method per route. None but `speech` asks more of the engine than a look."""

    def __init__(
        self, engine: "Engine", config: ServerConfig, draining: Callable[[], bool]
    ) -> None:
        self._engine = engine
        self._config = config
        self._draining = draining

    async def speech(self, request: Request) -> Speaking:
        """Text in, streamed speech out."""
        body = await read_json(request, self._config.limits.body_bytes, self._config.body_s)
        order = read_order(body, self._engine, self._config.limits)
        return Speaking(self._engine, order, self._config.stall_s)

    async def health(self, request: Request) -> Response:
        """Alive: the engine's loop has turned lately."""
        age_s = self._engine.heartbeat_age_s
        alive = age_s < self._config.heartbeat_s
        content = {"status": "ok" if alive else "stuck", "heartbeat_age_s": round(age_s, 3)}
        return JSONResponse(content, 200 if alive else 503)

    async def ready(self, request: Request) -> Response:
        """Takes requests: warm and not going down."""
        ready = self._engine.ready and not self._draining()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def models(self, request: Request) -> Response:
        """OpenAI's list of models: the one that is loaded, under each of its names."""
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "vivace"}
            for name in models(self._engine.model_id)
        ]
        return JSONResponse({"object": "list", "data": data})

    async def audio_models(self, request: Request) -> Response:
        """The same list as Open WebUI asks for it."""
        return JSONResponse({"models": [{"id": name} for name in models(self._engine.model_id)]})

    async def voices(self, request: Request) -> Response:
        """The checkpoint's voices."""
        return JSONResponse({"voices": [asdict(voice) for voice in self._engine.voices]})
