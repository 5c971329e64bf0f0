"""`vivace cluster`: replicas on Ray Serve, and the processes of the gate before them."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from vivace.settings import Effective

if TYPE_CHECKING:
    from vivace.cluster.board import Reader
    from vivace.cluster.options import Options


def cluster(
    chosen: Effective,
    replicas: Annotated[int, typer.Option(min=1, help="Engines, one to a card.")] = 1,
    max_replicas: Annotated[
        int, typer.Option(min=0, help="More than that: as many as the load needs, up to this.")
    ] = 0,
    gpus: Annotated[
        float, typer.Option(min=0, help="Cards of each replica; 0 puts it on the CPU.")
    ] = 1.0,
    cpus: Annotated[float, typer.Option(min=0, help="Cores that Ray sets aside for each.")] = 1.0,
    lean: Annotated[
        int, typer.Option(min=0, help="Busier replicas do not get a request for their voice.")
    ] = 8,
    gates: Annotated[
        int,
        typer.Option(
            min=0, max=64, help="Processes of the gate; 0: two a replica, if cores allow."
        ),
    ] = 0,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster that runs; without it, one on this host.")
    ] = None,
    build: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Serve from several engines behind one address. Needs `pip install 'vivace[cluster]'`."""
    from vivace.cluster.gates import Gates, bind_all, enough
    from vivace.cluster.options import Options
    from vivace.logs import log_to_stderr
    from vivace.server.serve import address_of, check_tls, warn_of_strangers

    options = Options.of(
        chosen,
        replicas=replicas,
        max_replicas=max_replicas,
        gpus=gpus,
        cpus=cpus,
        lean=lean,
        inside="" if ray_address else "127.0.0.1",
        build=build,
    )
    start, edge = options.start, options.server
    check_tls(edge.tls_cert, edge.tls_key)
    socks = bind_all(start.host, start.port, gates or enough(max(replicas, max_replicas)))
    log_to_stderr(logging.INFO, start.log_format)
    warn_of_strangers(socks[0], edge)
    ready = f"vivace is ready on {address_of(socks[0], tls=edge.tls_cert is not None)}"
    with running(options, ray_address) as read:
        Gates(options, socks, read).serve(lambda: print(ready, flush=True))


@contextmanager
def running(options: "Options", ray_address: str | None) -> Iterator["Reader"]:
    """Replicas that run, and what they say; all of it is gone at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: speech cannot wait
    import ray
    from ray import serve

    from vivace.cluster.board import Reader, board
    from vivace.cluster.deploy import NAME, speech

    ray.init(address=ray_address or "local", include_dashboard=False, logging_level=logging.WARNING)
    try:
        serve.start(proxy_location="Disabled")
        serve.run(speech(options), name=NAME, route_prefix=None)
        yield Reader()
    finally:
        with suppress(Exception):  # whatever of it is still there
            serve.delete(NAME)
            ray.kill(board())
        ray.shutdown()
