"""Reads the published tensors of one folder, one at a time, into modules that know their names."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vivace.checkpoint.fields import Fields, read_json
from vivace.errors import CheckpointError
from vivace.model.layers import Take

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = ("BF16", "F16", "F32")
NAMED = 5  # faulty tensors an error names; the others are counted


class Loadable(Protocol):
    """A module that takes its published tensors by name."""

    def load(self, take: Take) -> None:
        """Take and keep every tensor the module needs."""
        ...


class Weights:
    """The safetensors of one folder: a single file, or shards with an index.

    Only the headers are read here. Tensors are mapped into memory while they are copied, so that
    loading never holds a second copy of the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # name -> (file, dtype, shape)
        self.tensors: dict[str, tuple[Path, str, tuple[int, ...]]] = {}
        for file in _files(folder):
            for name, (dtype, shape) in _header(file).items():
                self.tensors[name] = file, dtype, shape

    def load(self, *modules: Loadable) -> None:
        """Fill `modules`. Raises CheckpointError that names the first tensors at fault in all."""
        missing: list[str] = []
        misfit: list[str] = []
        open_files: dict[Path, Any] = {}

        def take(name: str, *shape: int) -> Tensor:
            found = self.tensors.get(name)
            if found is None:
                missing.append(name)
            elif found[1] not in DTYPES:
                misfit.append(f"{name} is {found[1]}, not one of {', '.join(DTYPES)}")
            elif found[2] != shape:
                misfit.append(f"{name} is {[*found[2]]}, expected {[*shape]}")
            else:
                return self._read(name, found[0], open_files)
            return torch.zeros(()).expand(shape)  # so that the faults of the others are found too

        with torch.no_grad():
            for module in modules:
                module.load(take)
        self._report(missing, misfit)

    def _read(self, name: str, file: Path, open_files: dict[Path, Any]) -> Tensor:
        try:
            if file not in open_files:
                open_files[file] = safe_open(file, framework="pt")
            tensor: Tensor = open_files[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{file} cannot be read: {error}. Fetch it again.", code="unreadable"
            ) from None
        return tensor

    def _report(self, missing: list[str], misfit: list[str]) -> None:
        parts = [
            f"{len(faults)} {what}: {', '.join(faults[:NAMED])}{', ...' * (len(faults) > NAMED)}"
            for what, faults in (("missing", missing), ("of another shape or type", misfit))
            if faults
        ]
        if parts:
            raise CheckpointError(
                f"The tensors in {self.folder} do not fit its config. {'; '.join(parts)}. "
                "Fetch the checkpoint's files again, all of one revision.",
                code="tensors",
            )


class Unfilled(TorchFunctionMode):
    """Inside, new modules skip the random values that loading would overwrite.

    For the 1.7B model that is 10 s of drawing numbers. `dtype` is that of their weights, from the
    start and with no copy in fp32 beside them; unlike torch's default it holds for this thread
    alone, so that a model may be loaded while others speak.
    """

    SKIPPED = frozenset({nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_})
    TYPED = frozenset({torch.empty, torch.ones, torch.zeros, torch.full, torch.tensor})

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.SKIPPED:
            return args[0] if args else kwargs["tensor"]
        if func in self.TYPED and kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": self.dtype}
        return func(*args, **kwargs)


def _files(folder: Path) -> list[Path]:
    """The files that hold the tensors."""
    single, index = folder / ONE_FILE, folder / INDEX
    if not single.exists() and not index.exists():
        raise CheckpointError(
            f"{folder} holds neither {ONE_FILE} nor {INDEX}. Fetch the checkpoint's .safetensors "
            "files into it.",
            code="missing_file",
        )
    if single.exists():
        return [single]
    faults: list[str] = []
    shards = Fields(f"{index}: ", read_json(index, ""), faults).child("weight_map")
    files = [folder / name for name in sorted({shards.text(tensor) for tensor in shards.data})]
    if faults:
        raise CheckpointError(f"{'; '.join(faults)}. Fetch the file again.", code="malformed")
    if absent := [file.name for file in files if not file.exists()]:
        raise CheckpointError(
            f"{index} names {', '.join(absent)}, not in the folder. Fetch "
            f"{'it' if len(absent) == 1 else 'them'} too.",
            code="missing_file",
        )
    return files


def _header(file: Path) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor in `file`, after making sure that the file is all there.

    The layout (safetensors): 8 bytes of header length, the header in JSON, the tensors' bytes.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if start == b"version ":
            raise CheckpointError(
                f"{file} is a git-lfs pointer, not the weights. Run `git lfs pull` in its folder.",
                code="truncated",
            )
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= size - 8:
            raise _truncated(file, size, 8 + length)
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            tensors = {n: (str(e["dtype"]), tuple(e["shape"])) for n, e in header.items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise CheckpointError(
                f"{file} is not a safetensors file. Fetch it again.", code="malformed"
            ) from None
    if size != 8 + length + end:
        raise _truncated(file, size, 8 + length + end)
    return tensors


def _truncated(file: Path, size: int, expected: int) -> CheckpointError:
    return CheckpointError(
        f"{file} holds {size:,} bytes where its header asks for {expected:,}: it is cut off or "
        "damaged. Fetch it again.",
        code="truncated",
    )
