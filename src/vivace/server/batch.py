"""`POST /v1/audio/speech/batch`: several orders in one body, all of them valid or none begun."""

import asyncio
import base64
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vivace.config import ServerConfig
from vivace.errors import InvalidRequest, Unprocessable, VivaceError
from vivace.server import sse
from vivace.server.clips import Reference
from vivace.server.order import Order, read_order
from vivace.server.replies import as_json, error_object
from vivace.server.shelf import EMPTY, Shelf
from vivace.server.speaking import when_gone
from vivace.server.story import Story, story_of
from vivace.server.voiced import Voiced
from vivace.server.workers import Workers
from vivace.types import FinishReason

if TYPE_CHECKING:
    from vivace.engine import Engine

log = logging.getLogger(__name__)


def read_batch(
    body: Mapping[str, object], engine: "Engine", config: ServerConfig, shelf: Shelf = EMPTY
) -> list[Order]:
    """The orders of a batch. Fields beside `items` are what an item has that does not say.

    Raises:
        InvalidRequest: And its children; `param` names item and field, as in `items[3].voice`.
    """
    items, limits = body.get("items"), config.limits
    if not isinstance(items, list) or not 1 <= len(items) <= limits.batch_items:
        raise Unprocessable(
            f"`items` must be a list of 1 to {limits.batch_items} requests.", param="items"
        )
    shared = {name: value for name, value in body.items() if name != "items"}
    orders = [_item(at, item, shared, engine, config, shelf) for at, item in enumerate(items)]
    chars = sum(len(order.text) for order in orders)
    if chars > limits.text_chars:
        raise Unprocessable(
            f"The items have {chars:,} characters; the limit is {limits.text_chars:,}.",
            param="items",
            code="text_too_long",
        )
    return orders


def _item(
    at: int,
    item: object,
    shared: dict[str, object],
    engine: "Engine",
    config: ServerConfig,
    shelf: Shelf,
) -> Order:
    name = f"items[{at}]"
    if not isinstance(item, dict):
        raise Unprocessable(f"`{name}` must be a JSON object.", param=name)
    own = {key: value for key, value in item.items() if value is not None}
    try:
        order = read_order(shared | own, engine, config, shelf, strict=True)
    except InvalidRequest as error:
        raise _of_item(error, at) from error
    if order.output.sse:
        raise Unprocessable(f"`{name}`: a batch sends no events.", param=f"{name}.stream_format")
    return replace(order, request=replace(order.request, patient=True))


def _of_item(error: InvalidRequest, at: int) -> InvalidRequest:
    """It names the item and its field."""
    error.param = f"items[{at}].{error.param}"
    error.message = f"Item {at}: {error.message}"
    return error


async def check_clips(engine: "Engine", orders: list[Order], workers: Workers) -> None:
    """Make the voices of all clips, before any item begins.

    Raises:
        InvalidRequest: And its children; `param` names item and field.
    """
    seen = set[Reference | None]()
    for at, order in enumerate(orders):
        if order.reference in seen:
            continue
        seen.add(order.reference)
        try:
            await workers.cloned(engine, order.request, order.reference)
        except InvalidRequest as error:
            raise _of_item(error, at) from error


class Batch:
    """The response to a batch: JSON with the sound of each item in base64, at the end of them all.

    An item that fails has its error in the place of its sound, and the others go on.
    """

    def __init__(
        self, engine: "Engine", orders: list[Order], workers: Workers, at_once: int
    ) -> None:
        self._engine, self._orders, self._workers = engine, orders, workers
        self._room = asyncio.Semaphore(at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak every item; a client that leaves ends those that speak."""
        whole = story_of(scope)
        whole.admit()
        stories = [whole.part("batch") for _ in self._orders]
        speaking = asyncio.gather(*map(self._speak, self._orders, stories))
        watcher = asyncio.create_task(when_gone(receive, speaking.cancel))
        try:
            results = await speaking
        except asyncio.CancelledError:
            if not watcher.done():
                raise
            return  # nobody is there
        finally:
            speaking.cancel()
            watcher.cancel()
        body = await self._workers.run(_body, results)
        await Response(body, media_type="application/json")(scope, receive, send)
        whole.end(FinishReason.STOP)

    async def _speak(self, order: Order, story: Story) -> dict[str, object]:
        story.orders(order, "batch")
        try:
            async with self._room:
                voiced = story.voiced = await Voiced.open(self._engine, order, self._workers)
                try:
                    sound, done = await voiced.whole()
                    story.end(done.reason, done)
                finally:
                    voiced.close()
        except asyncio.CancelledError:
            story.end(FinishReason.CANCELLED)
            raise
        except Exception as error:
            story.fail(error)
            if not isinstance(error, VivaceError):
                log.exception("an item of a batch failed")
            return {"status": "error", "error": error_object(error)}
        return {
            "status": "success",
            "audio_data": sound,
            "media_type": order.output.media_type,
            **done.told,
            "usage": sse.usage(done),
            "warnings": voiced.warnings,
            **({} if voiced.cache is None else {"cache": voiced.cache}),
        }


def _body(results: list[dict[str, object]]) -> bytes:
    """The answer's JSON; it may be many megabytes."""
    succeeded = sum(result["status"] == "success" for result in results)
    return as_json(
        {
            "id": f"batch-{uuid.uuid4().hex}",
            "results": [{"index": at, **_spelt(result)} for at, result in enumerate(results)],
            "total": len(results),
            "succeeded": succeeded,
            "failed": len(results) - succeeded,
        }
    )


def _spelt(result: dict[str, object]) -> dict[str, object]:
    """Bytes in base64."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in result.items()
    }
