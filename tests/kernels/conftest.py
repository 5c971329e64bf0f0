"""On a card the kernels run as they are; elsewhere Triton's interpreter runs them."""

import importlib
import importlib.util
from typing import Any

import pytest
import torch

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]


def _interpret() -> None:
    """Import the kernels for the interpreter, and let it count with bounds of NumPy 2.4 and on."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    importlib.import_module("triton.experimental.gluon")  # else the first launch does so
    importlib.import_module("vivace.kernels.ops")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if not collect_ignore_glob and not torch.cuda.is_available():
    _interpret()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def seeded(device: torch.device) -> None:
    torch.manual_seed(0)
