"""What every test shares."""

from hypothesis import HealthCheck, settings

# Two cores, several workers: no wall-clock deadlines. The same examples on every run.
settings.register_profile(
    "vivace", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vivace")
