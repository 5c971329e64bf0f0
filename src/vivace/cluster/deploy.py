"""The Ray Serve application: replicas, and where there is no `vivace cluster`, the gate too."""

from typing import Any, cast

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from vivace.cluster.gate import Gate
from vivace.cluster.options import Options
from vivace.cluster.replica import SLACK_S, Speech, actor_options

NAME = "vivace"
TRIES = 2  # to load a checkpoint
LOOK_S = 1.0  # between two health checks: a replica that is killed is replaced so soon


def _policy() -> AutoscalingPolicy:
    return AutoscalingPolicy(  # type: ignore[no-untyped-call]
        policy_function="vivace.cluster.scale:policy"
    )


def speech(options: Options) -> Application:
    """The replicas alone."""
    count: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas > options.replicas:
        count = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.max_replicas,
                policy=_policy(),
                metrics_interval_s=LOOK_S,
                look_back_period_s=5.0,
                upscale_delay_s=5.0,
                downscale_delay_s=300.0,
            )
        }
    deployment: Any = serve.deployment(
        name="speech",
        ray_actor_options=actor_options(options),
        health_check_period_s=LOOK_S,
        max_constructor_retry_count=TRIES,
        graceful_shutdown_timeout_s=options.server.drain_s + SLACK_S,
        **count,
    )(Speech)
    return cast(Application, deployment.bind(options))


def as_ingress(options: Options) -> Application:
    """Gate and replicas, the gate behind Ray Serve's own proxy."""

    def build() -> Any:
        return Gate(options).app

    class Door:
        """The gate as Ray Serve has it; it holds the replicas' handle so that they are deployed."""

        def __init__(self, speech: Any) -> None:
            self._speech = speech

    door: Any = serve.deployment(
        name="gate",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1_000_000,  # whoever is refused is refused by a replica
    )(serve.ingress(build)(Door))
    return cast(Application, door.bind(speech(options)))
