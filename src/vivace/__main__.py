"""`python -m vivace`."""

from vivace.cli import app

app()
