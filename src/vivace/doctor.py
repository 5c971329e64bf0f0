"""Looks at the machine and says in words what it can do and what is missing."""

import os
import platform
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

GIB = 1 << 30
LARGEST_DOWNLOAD = 6 * GIB  # the 1.7B checkpoint with its speech tokenizer, and some room
LEAST_MEMORY = 4 * GIB  # the embedded voice beside torch


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: all right, worth knowing, or missing so that vivace cannot run."""

    what: str
    words: str
    mark: Literal["ok", "note", "MISSING"] = "ok"

    def __str__(self) -> str:
        return f"{self.mark:8} {self.what:8} {self.words}"


def examine(host: str, port: int) -> list[Finding]:
    """Everything worth knowing before `vivace serve`. Nothing is downloaded or contacted."""
    cache = Path(constants.HF_HUB_CACHE)
    return [
        *_python(),
        *_torch(),
        _cores(),
        _memory(),
        _disk(cache),
        _hub(cache),
        _port(host, port),
    ]


def _python() -> Iterator[Finding]:
    """Python, and a system that cannot be used."""
    words = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        yield Finding("python", words)
    else:
        yield Finding("python", f"{words}; 3.11 to 3.13 is needed", "MISSING")
    if platform.system() == "Windows":
        yield Finding("system", "Windows is not supported; WSL 2 is Linux", "MISSING")


def _torch() -> Iterator[Finding]:
    """Torch itself, then each card that it sees."""
    try:
        import torch  # noqa: PLC0415 - that it is not there is worth saying, too
    except ImportError as error:
        words = f"cannot be imported ({error}); install torch 2.9 or newer"
        yield Finding("torch", words, "MISSING")
        return
    yield Finding("torch", torch.__version__)
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else " (this torch is built without CUDA)"
        words = f"no CUDA card is usable{built}; speech is made on the CPU"
        yield Finding("card", words, "note")
        return
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        words = f"cuda:{index} {card.name}, {card.total_memory / GIB:.0f} GiB"
        words += f", compute capability {card.major}.{card.minor}"
        if card.major >= 8:
            yield Finding("card", words)
        else:
            yield Finding("card", f"{words}; 8.0 or newer is supported", "note")
    yield _compiler()


def _compiler() -> Finding:
    """What Triton builds each kernel's launcher with, as it looks for it."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_path("include"))
    if compiler and (headers / "Python.h").exists():
        return Finding("compiler", compiler)
    lacking = f"no Python.h in {headers}" if compiler else "no gcc or clang"
    words = f"{lacking}: kernels cannot be built, so steps take longer"
    return Finding("compiler", words, "note")


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if count < 2:
        return Finding("cores", "1: even the embedded voice may not keep up", "note")
    return Finding("cores", f"{count}: enough for the embedded voice; large ones want a card")


def _memory() -> Finding:
    if sys.platform == "win32":
        return Finding("memory", "unknown on this system", "note")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    words = f"{total / GIB:.1f} GiB"
    if total < LEAST_MEMORY:
        return Finding("memory", f"{words}; less than {LEAST_MEMORY // GIB} GiB is tight", "note")
    return Finding("memory", words)


def _disk(cache: Path) -> Finding:
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    words = f"{free / GIB:.1f} GiB free for {cache}"
    if free < LARGEST_DOWNLOAD:
        words += f"; the largest checkpoint wants {LARGEST_DOWNLOAD // GIB} GiB"
        return Finding("disk", words, "note")
    return Finding("disk", words)


def _hub(cache: Path) -> Finding:
    names = sorted(path.name for path in cache.glob("models--*Qwen3-TTS*"))
    have = ", ".join(name.removeprefix("models--").replace("--", "/") for name in names)
    words = f"in the cache: {have or 'no Qwen3-TTS checkpoint'}; the hub itself was not asked"
    return Finding("hub", words)


def _port(host: str, port: int) -> Finding:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            words = f"{host}:{port} cannot be used ({error.strerror}); serve with another --port"
            return Finding("port", words, "note")
    return Finding("port", f"{host}:{port} is free")
