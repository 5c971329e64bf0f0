"""Thousands of worlds: who ran dry? `make simulate-fuzz SEEDS="0 2000"`."""

import json
import random
import sys
from pathlib import Path

from tests.simulate.worlds import ENOUGH, world

from vivace.bench.machine import commit


def look(seed: int) -> dict[str, object] | None:
    """What happened in one world; None for one whose device cannot carry a stream."""
    there = world(random.Random(seed))
    if not there.able:
        return None
    admitted = [h for h in there.run() if h.refused_s is None]
    return {
        "seed": seed,
        "utilisation": round(there.utilisation, 3),
        "streams": len(admitted),
        "underrun_streams": sum(h.stalls > 0 for h in admitted),
        "longest_stall_ms": round(1e3 * max((h.stalled_s for h in admitted), default=0.0), 2),
    }


def main(first: int, last: int, output: Path) -> None:
    """Look at all of them, write down the sums and the worlds where somebody ran dry."""
    worlds = [found for seed in range(first, last) if (found := look(seed)) is not None]
    dry = [found for found in worlds if found["underrun_streams"]]
    calm = [found for found in worlds if float(str(found["utilisation"])) < ENOUGH]
    result = {
        "command": f'make simulate-fuzz SEEDS="{first} {last}"',
        "commit": commit(),
        "seeds": [first, last],
        "worlds": len(worlds),
        "streams": sum(int(str(found["streams"])) for found in worlds),
        "underrun_streams": sum(int(str(found["underrun_streams"])) for found in worlds),
        "worlds_below_0.9": len(calm),
        "worlds_with_underruns": len(dry),
        "worlds_with_underruns_below_0.9": sum(found in calm for found in dry),
        "dry": dry,
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print({key: value for key, value in result.items() if key != "dry"})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
