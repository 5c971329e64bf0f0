"""Where a run was made: hardware, versions, commit, and what the GPUs did meanwhile."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("vivace", "torch", "numpy", "uvicorn", "httptools", "websockets")


def hardware() -> dict[str, object]:
    """The machine that this process runs on."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpus": Gpus().names,
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Python's and the packages' that are there."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of vivace's checkout, marked `+` if files differ from it; None outside of one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """The command line that this is."""
    return shlex.join(["vivace", *sys.argv[1:]])


class Gpus:
    """Use, memory and power of every NVIDIA GPU here, sampled; no GPU is fine too."""

    def __init__(self) -> None:
        self.nvml, self.handles = _nvml()
        self.names = [str(self.nvml.nvmlDeviceGetName(handle)) for handle in self.handles]
        self.samples: list[list[tuple[int, float, float]]] = [[] for _ in self.handles]

    def sample(self) -> None:
        """Note what each GPU does now: percent, GB, watts."""
        for handle, seen in zip(self.handles, self.samples, strict=True):
            use = self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            memory = self.nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9
            seen.append((use, memory, self.nvml.nvmlDeviceGetPowerUsage(handle) / 1e3))

    def summary(self) -> list[dict[str, object]]:
        """One line a GPU."""
        return [
            {
                "name": name,
                "mean_use_percent": round(sum(use) / len(use), 1),
                "max_memory_gb": round(max(memory), 2),
                "mean_power_w": round(sum(power) / len(power), 1),
                "max_power_w": round(max(power), 1),
            }
            for name, seen in zip(self.names, self.samples, strict=True)
            if seen
            for use, memory, power in [tuple(zip(*seen, strict=True))]
        ]


def _nvml() -> tuple[Any, list[Any]]:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    except Exception:  # not installed, no driver, no permission: all mean that there is none for us
        return None, []
