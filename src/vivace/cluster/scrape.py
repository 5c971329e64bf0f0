"""One page for Prometheus of those of all replicas, told apart by a label."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class Merged(Collector):
    """The families of several pages, each once; the label `replica` says whose a sample is."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._families: dict[str, Metric] = {}
        for replica, page in pages.items():
            for family in text_string_to_metric_families(page):
                self._add(family, replica)

    def _add(self, family: Metric, replica: str) -> None:
        name = family.name
        known = self._families.get(name)
        if known is None:
            known = self._families[name] = Metric(name, family.documentation, family.type)
        known.samples += [
            sample._replace(labels={**sample.labels, "replica": replica})
            for sample in family.samples
        ]

    def describe(self) -> Iterable[Metric]:
        """Nothing to check at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._families.values()


def merged(pages: Mapping[str, str]) -> bytes:
    """The page for Prometheus, of one for each replica."""
    registry = CollectorRegistry()
    registry.register(Merged(pages))
    return generate_latest(registry)
