"""The routes of the HTTP server."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from vivace.config import ServerConfig
from vivace.errors import VivaceError
from vivace.server import elevenlabs
from vivace.server.batch import Batch, check_clips, read_batch
from vivace.server.body import LONG_BODY, parse, read_body
from vivace.server.cartesia import cartesia_routes
from vivace.server.clips import Clones, most_body, takes_clips
from vivace.server.elevenlabs import elevenlabs_routes
from vivace.server.gate import Gate
from vivace.server.keys import load_keys
from vivace.server.live.routes import socket_routes
from vivace.server.metrics import EngineMetrics, Metrics, ShelfMetrics
from vivace.server.names import check_aliases, find_model, find_voice, model_names
from vivace.server.openapi import Described
from vivace.server.order import read_order
from vivace.server.page.routes import page_routes
from vivace.server.quota import Quotas
from vivace.server.replies import WithRequestId, failed, not_routed, refused
from vivace.server.shelf import Shelf, open_shelf
from vivace.server.speaking import Speaking
from vivace.server.story import Ledger, Watched
from vivace.server.studio import Decode, Studio
from vivace.server.vendor_voices import vendor_voice_routes
from vivace.server.vendors import Edge
from vivace.server.voices import voice_routes
from vivace.server.workers import Workers

if TYPE_CHECKING:
    from vivace.engine import Engine


def create_app(
    engine: "Engine",
    config: ServerConfig | None = None,
    *,
    draining: Callable[[], bool] = lambda: False,
    decode: Decode | None = None,
) -> ASGIApp:
    """The ASGI app that serves one engine; `draining` says that the server is going down.

    `decode` reads the files of clips; without it, processes of their own do.
    """
    config = config or ServerConfig()
    check_aliases([model.model_id for model in engine.models], config.model_aliases)
    shelf = open_shelf(config)
    for alias in config.voice_aliases:  # one of a voice that is not there is found out at the start
        find_voice(alias, engine.voices, config.voice_aliases, shelf.voices_of(engine))
    routes = Routes(engine, config, draining, shelf)
    edge = Edge(engine, config, routes.workers, draining, shelf)
    metrics = Metrics()
    metrics.registry.register(EngineMetrics(engine))
    metrics.registry.register(ShelfMetrics(shelf))
    studio = Studio(engine, shelf, decode or routes.clones.decode)
    app = Starlette(
        routes=[
            *page_routes(engine),
            *socket_routes(edge),
            *elevenlabs_routes(edge),
            *cartesia_routes(edge),
            Route("/health", routes.health),
            Route("/ready", routes.ready),
            Route("/openapi.json", Described(edge).get),
            Route("/metrics", metrics.page),
            Route("/v1/models", routes.models),
            Route("/v1/models/{model:path}", routes.model),
            Route("/v1/audio/models", routes.audio_models),
            Route("/v1/audio/styles", routes.styles),
            *voice_routes(studio, config, routes.workers),
            *vendor_voice_routes(edge, studio),
            Route("/v1/audio/speech", routes.speech, methods=["POST"]),
            Route("/v1/audio/speech/batch", routes.batch, methods=["POST"]),
        ],
        exception_handlers={VivaceError: refused, HTTPException: not_routed, Exception: failed},
    )
    return behind_the_door(app, config, metrics)


def behind_the_door(app: ASGIApp, config: ServerConfig, metrics: Metrics) -> ASGIApp:
    """The app behind what stands before every route: keys, origins, ids, a story of each request.

    Raises what `load_keys` raises.
    """
    keys = load_keys(config.api_keys, config.api_keys_file)
    gated: ASGIApp = Gate(app, keys, config.cors_origins, metrics)
    if config.cors_origins:
        gated = CORSMiddleware(
            gated,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    quotas = Quotas(config.key_sessions, config.key_per_minute)
    return WithRequestId(Watched(gated, Ledger(metrics, config.log_text, quotas)))


T = TypeVar("T")
Read = Callable[[Mapping[str, object], "Engine", ServerConfig, Shelf], T]


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "vivace"}


class Routes:
    """One method per route. None but `speech` and `batch` ask more of the engine than a look."""

    def __init__(
        self, engine: "Engine", config: ServerConfig, draining: Callable[[], bool], shelf: Shelf
    ) -> None:
        self._engine = engine
        self._config = config
        self._draining = draining
        self._shelf = shelf
        self.clones = Clones(config)
        if takes_clips(engine):
            self.clones.prepare()
        self.workers = Workers(config.encoder_threads, self.clones)

    async def speech(self, request: Request) -> Speaking:
        """Text in, streamed speech out."""
        order = await self._read(request, read_order)
        return Speaking(self._engine, order, self.workers, self._config.stall_s)

    async def batch(self, request: Request) -> Batch:
        """Several texts in, all of their speech out."""
        orders = await self._read(request, read_batch)
        await check_clips(self._engine, orders, self.workers)
        return Batch(self._engine, orders, self.workers, self._config.batch_at_once)

    async def _read(self, request: Request, read: Read[T]) -> T:
        """What a JSON body asks for; a long one is read aside."""
        most = most_body(self._engine, self._config.limits)
        raw = await read_body(request, most, self._config.body_s)

        def work() -> T:
            return read(parse(raw), self._engine, self._config, self._shelf)

        return await self.workers.run(work, aside=len(raw) > LONG_BODY)

    async def health(self, request: Request) -> Response:
        """Alive: the engine's loop is there and has turned lately."""
        age_s, there = self._engine.heartbeat_age_s, self._engine.alive
        alive = there and age_s < self._config.heartbeat_s
        gone = "restarting" if self._engine.restarting else "dead"
        status = "ok" if alive else "stuck" if there else gone
        content = {"status": status, "heartbeat_age_s": round(age_s, 3)}
        return JSONResponse(content, 200 if alive else 503)

    async def ready(self, request: Request) -> Response:
        """Takes requests: warm and not going down."""
        ready = self._engine.ready and not self._draining()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def models(self, request: Request) -> Response:
        """OpenAI's list of models: those that are served, under each of their names."""
        if elevenlabs.KEY in request.headers:
            return elevenlabs.models(self._engine, self._config)
        return JSONResponse({"object": "list", "data": list(map(_model, self._names))})

    async def model(self, request: Request) -> Response:
        """One of that list."""
        return JSONResponse(_model(find_model(request.path_params["model"], self._names)))

    async def audio_models(self, request: Request) -> Response:
        """The same list as Open WebUI asks for it."""
        return JSONResponse({"models": [{"id": name} for name in self._names]})

    @property
    def _names(self) -> list[str]:
        return list(self._meant)

    @property
    def _meant(self) -> Mapping[str, str | None]:
        ids = [model.model_id for model in self._engine.models]
        return model_names(ids, self._config.model_aliases)

    async def styles(self, request: Request) -> Response:
        """The ways of speaking that `style` may name."""
        return JSONResponse({"styles": list(map(asdict, self._shelf.styles.values()))})
