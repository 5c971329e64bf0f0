"""`python -m vivace`."""

from vivace.cli import app

app(prog_name="vivace")
