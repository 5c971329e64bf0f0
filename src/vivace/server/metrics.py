"""What the server counts and measures, for Prometheus. docs/metrics.md says what each is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from vivace.meters import CANCEL_S, MARGIN_S, STEP_S, WAIT_S, Bounds, Tally
from vivace.types import FinishReason

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.host import Readings
    from vivace.server.heard import Heard
    from vivace.server.shelf import Shelf
    from vivace.server.story import Story

_FIRST_S: Final = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0)
_LONG_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_SHORT_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_RATIO: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
CONTINUOUS_MS: Final = (50, 100, 200)  # deficits that a stream may have and be called continuous
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class Metrics:
    """The edge's own, and a registry for all; one per app."""

    def __init__(self) -> None:
        self.registry = one = CollectorRegistry()
        self.requests = Counter(
            "vivace_requests",
            "Requests and turns that ended, by how",
            ["route", "kind", "reason", "key"],
            registry=one,
        )
        self.answers = Counter(
            "vivace_http_requests", "HTTP requests", ["route", "method", "status"], registry=one
        )
        self.sockets = Gauge(
            "vivace_sockets_open",
            "Sockets that are open",
            registry=one,
            multiprocess_mode="livesum",
        )
        self.ttfa = Histogram(
            "vivace_ttfa_seconds",
            "From a request to its first byte of sound, and to the first that can be heard",
            ["kind", "sound"],
            buckets=_FIRST_S,
            registry=one,
        )
        self.took = Histogram(
            "vivace_request_seconds",
            "From a request to its end",
            ["kind"],
            buckets=_LONG_S,
            registry=one,
        )
        self.speech = Counter("vivace_speech_seconds", "Sound made", ["kind"], registry=one)
        self.chars = Counter("vivace_text_chars", "Characters of text", ["kind"], registry=one)
        self.stalls = Counter(
            "vivace_underruns", "Times a listener's player ran dry", ["kind"], registry=one
        )
        self.stalled = Counter(
            "vivace_underrun_streams", "Streams whose player ran dry", ["kind"], registry=one
        )
        self.encode = Histogram(
            "vivace_encode_seconds",
            "Time of one stream in its encoder, the wait for a thread included",
            ["format"],
            buckets=_SHORT_S,
            registry=one,
        )
        self.refusals = Counter(
            "vivace_key_refusals", "Requests refused for their key", ["key", "why"], registry=one
        )
        self._comparable(one)
        ProcessCollector(registry=one)

    def _comparable(self, one: CollectorRegistry) -> None:
        """As vLLM-Omni defines them, for streams that came to a good end."""
        self.ttfp = Histogram(
            "vivace_audio_ttfp_seconds",
            "From a request to its first samples",
            buckets=_FIRST_S,
            registry=one,
        )
        self.rtf = Histogram(
            "vivace_audio_rtf",
            "Time from a request to its last sound, for a second of it",
            buckets=_RATIO,
            registry=one,
        )
        self.underrun = Histogram(
            "vivace_audio_underrun_seconds",
            "The most that a player who does not stop would have lacked",
            buckets=_SHORT_S,
            registry=one,
        )
        self.continuous = Counter(
            "vivace_audio_continuity_ok",
            "Streams that lacked no more than the threshold",
            ["threshold_ms"],
            registry=one,
        )
        self.streams = Counter("vivace_audio_streams", "Streams that these are about", registry=one)

    def answered(self, story: "Story", status: str) -> None:
        """An HTTP request is over."""
        method = story.scope["method"]
        method = method if method in _METHODS else "other"
        self.answers.labels(story.route, method, status).inc()

    def request(self, story: "Story", reason: str, took_s: float) -> None:
        """A request, or a turn on a socket, is over."""
        kind, voiced = story.kind, story.voiced
        self.requests.labels(story.route, kind, reason, story.key).inc()
        if kind == "none":
            return
        self.took.labels(kind).observe(took_s)
        self.chars.labels(kind).inc(story.chars)
        if voiced is None or voiced.heard.first_s is None:
            return
        heard = voiced.heard
        if story.first_byte_s is not None:
            self.ttfa.labels(kind, "first_byte").observe(story.first_byte_s - story.began_s)
        if heard.audible_s is not None and kind not in ("whole", "batch"):
            self.ttfa.labels(kind, "audible").observe(heard.audible_s - story.began_s)
        self.speech.labels(kind).inc(heard.sound_s)
        self.encode.labels(voiced.form).observe(voiced.encode_s)
        if kind not in ("whole", "batch"):
            self.stalls.labels(kind).inc(heard.stalls)
            self.stalled.labels(kind).inc(heard.stalls > 0)
        if kind in ("stream", "events") and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._compared(heard, story.began_s)

    def _compared(self, heard: "Heard", began_s: float) -> None:
        assert heard.first_s is not None
        self.streams.inc()
        self.ttfp.observe(heard.first_s - began_s)
        self.rtf.observe((heard.last_s - began_s) / heard.sound_s)
        self.underrun.observe(heard.deficit_s)
        for most_ms in CONTINUOUS_MS:
            self.continuous.labels(str(most_ms)).inc(heard.deficit_s * 1e3 <= most_ms)

    async def page(self, request: Request) -> Response:
        """What Prometheus reads."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


class EngineMetrics(Collector):
    """What the engine has told of itself, at the time of a scrape."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        """Nothing to check at registration: the engine may be gone by then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        yield from self._now()
        readings = self._engine.readings
        yield from _counted(readings)
        yield from _measured(readings)
        yield from _stock(readings)

    def _now(self) -> Iterator[Metric]:
        engine, stats = self._engine, self._engine.stats()
        labels = {"version": version("vivace"), "model": engine.model_id}
        info = GaugeMetricFamily("vivace_info", "What runs here", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        yield _gauge("vivace_ready", "Takes requests", engine.ready)
        yield _gauge("vivace_engine_up", "The engine's loop is there", engine.alive)
        restarts = "Times the engine's process was replaced"
        yield CounterMetricFamily("vivace_engine_restarts", restarts, engine.restarts)
        age_s = engine.heartbeat_age_s
        yield _gauge("vivace_heartbeat_age_seconds", "Since the loop last came round", age_s)
        yield _gauge("vivace_sessions_active", "Sessions with a slot", stats.active)
        yield _gauge("vivace_sessions_waiting", "Sessions without one", stats.waiting)
        # A slot is a place in the batch and the codec's state that goes with it.
        used, free = stats.slots_total - stats.slots_free, stats.slots_free
        yield _split("vivace_slots", "Places for sessions", used, free)
        yield _split("vivace_codec_states", "States of the codec", used, free)


class ShelfMetrics(Collector):
    """What is kept on disk, at the time of a scrape."""

    def __init__(self, shelf: "Shelf") -> None:
        self._shelf = shelf

    def describe(self) -> Iterable[Metric]:
        """Nothing to check at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Kept voices and results, where there are any."""
        if self._shelf.voices is not None:
            number = len(self._shelf.voices.voices())
            yield _gauge("vivace_kept_voices", "Voices that clients have made", number)
        if (results := self._shelf.results) is None:
            return
        found = CounterMetricFamily("vivace_results", "Speech made before", labels=["result"])
        for name, value in asdict(results.counts).items():
            found.add_metric([_RESULTS[name]], value)
        yield found
        yield _gauge("vivace_results_bytes", "Speech that is kept", results.bytes)


_RESULTS: Final = {"hits": "hit", "misses": "miss"} | {
    name: name for name in ("kept", "dropped", "spoilt", "failed")
}


def _counted(readings: "Readings") -> Iterator[Metric]:
    counts = readings.counts
    yield CounterMetricFamily("vivace_steps", "Rounds that started a step", counts.steps)
    starved = "Streams left out of a step that outlasts what they had in hand"
    yield CounterMetricFamily("vivace_starved", starved, counts.starved)
    late = "Chunks sent after their listener had fallen silent, text being there"
    yield CounterMetricFamily("vivace_late_chunks", late, counts.late)
    refused = "Newcomers that the loop sent away"
    yield CounterMetricFamily("vivace_loop_refusals", refused, counts.refused)
    cuts = CounterMetricFamily(
        "vivace_guard_cuts", "Pieces of text that a guard ended", None, ["guard"]
    )
    for cut, count in counts.cuts.items():
        cuts.add_metric([cut], count)
    yield cuts
    redraws = "Speech that nobody had heard, drawn again"
    yield CounterMetricFamily("vivace_redraws", redraws, counts.redraws)
    spoilt = "Sessions that ended as their numbers broke down"
    yield CounterMetricFamily("vivace_spoilt", spoilt, counts.spoilt)


def _measured(readings: "Readings") -> Iterator[Metric]:
    meters = readings.meters
    wait = "From a session's first text to its slot"
    yield _histogram("vivace_queue_wait_seconds", wait, WAIT_S, meters.wait)
    margin = "What a listener had left when its next chunk was sent; below 0 it was late"
    yield _histogram("vivace_deadline_margin_seconds", margin, MARGIN_S, meters.margin)
    cancel = "From the word that nobody listens to the slot's return"
    yield _histogram("vivace_cancel_seconds", cancel, CANCEL_S, meters.cancel)
    lanes = dict(meters.lanes)
    labels = ["module", "rows"]
    took = HistogramMetricFamily("vivace_step_seconds", "Times of steps, by batch", labels=labels)
    rows = CounterMetricFamily("vivace_step_rows", "Rows in steps", labels=labels[:1])
    room = CounterMetricFamily("vivace_step_room", "Rows there was room for", labels=labels[:1])
    for module, lane in lanes.items():
        for size, tally in sorted(dict(lane.took_s).items()):
            took.add_metric([module, str(size)], _buckets(STEP_S, tally), tally.total)
        rows.add_metric([module], lane.rows)
        room.add_metric([module], lane.room)
    yield from (took, rows, room)


def _stock(readings: "Readings") -> Iterator[Metric]:
    stock = readings.stock
    pages = stock.pages - stock.pages_free, stock.pages_free
    yield _split("vivace_pages", "Pages of keys and values", *pages)
    found = CounterMetricFamily("vivace_prefix_cache", "Prompts' heads", labels=["result"])
    found.add_metric(["hit"], stock.prefix_hits)
    found.add_metric(["miss"], stock.prefix_misses)
    yield found
    yield _gauge("vivace_prefix_cache_bytes", "Keys and values kept of them", stock.prefix_bytes)
    about = "Memory of the card: held by tensors, taken by the engine, all there is"
    memory = GaugeMetricFamily("vivace_gpu_memory_bytes", about, labels=["what"])
    memory.add_metric(["held"], stock.device_bytes)
    memory.add_metric(["taken"], stock.device_reserved_bytes)
    memory.add_metric(["total"], stock.device_total_bytes)
    yield memory


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, float(value))


def _split(name: str, about: str, used: int, free: int) -> Metric:
    metric = GaugeMetricFamily(name, about, labels=["state"])
    metric.add_metric(["used"], used)
    metric.add_metric(["free"], free)
    return metric


def _histogram(name: str, about: str, bounds: Bounds, tally: Tally) -> Metric:
    return HistogramMetricFamily(name, about, _buckets(bounds, tally), tally.total)


def _buckets(bounds: Bounds, tally: Tally) -> Sequence[tuple[str, float]]:
    """Counts up to each bound, as Prometheus has them."""
    names = [*map(str, map(float, bounds)), "+Inf"]
    return list(zip(names, accumulate(tally.counts), strict=True))
