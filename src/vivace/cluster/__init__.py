"""Several engines behind one address, one to a card, on Ray Serve."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> "Application":
    """What `serve run vivace.cluster:app` and a RayService run; `args` are `Options` by name."""
    from vivace.cluster.deploy import as_ingress
    from vivace.cluster.options import Options

    return as_ingress(Options.read(args))
