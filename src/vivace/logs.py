"""Log lines on stderr, the same from every process."""

import logging
import sys


def log_to_stderr(level: int) -> None:
    """Our own log lines from `level` on; only the warnings of everybody else."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("vivace").setLevel(level)
