"""Finds the folder of a checkpoint: a local one, or one fetched from the Hugging Face hub."""

import os
import re
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from vivace.checkpoint.embedded import embedded
from vivace.errors import CheckpointError

EMBEDDED = ("vivace-embedded", "embedded")
HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/[\w.-]+)(@(?P<revision>[^@\s]+))?")
FILES = ["*.json", "*.safetensors", "merges.txt"]  # a star also matches in sub-folders


def locate(model: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The local folder of `model`: a path, or a hub id, fetched unless it is in the local cache.

    `vivace-embedded`, or `embedded`, is the voice in the box.

    A hub id may carry its revision (branch, tag or commit) as `owner/name@revision`. `offline` uses
    the local cache alone. Raises CheckpointError that says what to do.
    """
    if model in EMBEDDED:
        return embedded()
    folder = Path(os.path.expanduser(model))  # leaves alone what names no user
    if model and folder.is_dir():
        return folder
    if model and folder.exists():
        raise CheckpointError(
            f"{model} is a file. Give the folder that holds config.json.", code="not_found"
        )
    hub_id = HUB_ID.fullmatch(model)
    if hub_id is None:
        raise CheckpointError(
            f"There is no folder {model!r}, and it is no hub id (owner/name). Check the path.",
            code="not_found",
        )
    return _fetch(hub_id["repo"], revision or hub_id["revision"], offline)


def _fetch(repo: str, revision: str | None, offline: bool) -> Path:
    try:
        return Path(
            snapshot_download(
                repo, revision=revision, local_files_only=offline, allow_patterns=FILES
            )
        )
    except Exception as error:
        # The hub's client lets through errors of its network library, which differs by version.
        raise CheckpointError(_advice(error, repo, revision, offline), code="hub") from error


def _advice(error: Exception, repo: str, revision: str | None, offline: bool) -> str:
    """What happened and what to do about it."""
    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    unknown = (
        f"{repo} is neither a folder here nor a repository at {hub}. Check the name; if the "
        "repository is private, run `hf auth login`."
    )
    unreachable = (
        f"{hub} cannot be reached, and {repo} is not in the local cache ({cache}). Check the "
        "network, or give a folder with its files."
    )
    absent = (
        f"{repo} is not, or not whole, in the local cache ({cache}), and offline is on. Start once "
        "with a network, or give a folder with its files."
    )
    advice = {  # the first that fits: a gated repository is also one not found
        GatedRepoError: f"{repo} asks for consent. Accept its terms at {hub}/{repo}, then run "
        "`hf auth login`.",
        RepositoryNotFoundError: unknown,
        HFValidationError: unknown,
        RevisionNotFoundError: f"{repo} has no revision {revision!r}. Choose one from "
        f"{hub}/{repo}/commits.",
        LocalEntryNotFoundError: absent if offline or constants.HF_HUB_OFFLINE else unreachable,
    }
    otherwise = f"Fetching {repo} failed ({type(error).__name__}: {error}). Try again: it resumes."
    return next((text for kind, text in advice.items() if isinstance(error, kind)), otherwise)
