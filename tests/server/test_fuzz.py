"""A small part of `make http-fuzz`, always the same one."""

import pytest
from tests.server import fuzz


@pytest.mark.filterwarnings("ignore")
def test_no_request_is_our_fault_and_every_one_is_answered() -> None:
    met = fuzz.run(400)
    tried = sum(sum(some.values()) for some in met.values())
    assert tried >= 300
    assert met["POST /v1/audio/speech"]["200"] and met["any body"]["400"] and met["any head"]
