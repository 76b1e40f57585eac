"""What a start asks for: one backend, one draft count and one proposal head, for all of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dflash_spec.config import arguments, dflash2
from dflash_spec.config.draft import BACKENDS, DFlash2Config, read_draft_config
from dflash_spec.config.target import TargetConfig
from dflash_spec.config.width import draft_count
from dflash_spec.errors import ConfigError
from dflash_spec.registry import Profile

NATIVE = {
    "layers": 5, "eps": 1e-6, "theta": 1e7, "hidden_size": 5120, "selector_rank": 256, "selector_top_k": 16,
    "conv_taps": 2, "conv_group": 16,
}  # fmt: skip
"""The one geometry that NInfer's DFlash2 kernels have; the layers are all local besides."""


def check_concurrency(profile: Profile, requests: int) -> None:
    """Clause: CFG-055. Raises ConfigError unless a start serves 1 to the profile's `concurrency` requests."""
    arguments.check_instance("profile", profile, Profile)
    requests = arguments.integer("requests", requests)
    limit = int(profile.axes["concurrency"])
    if not 1 <= requests <= limit:
        raise ConfigError(f"requests: found {requests}, expected 1 to {limit}", key="requests", clause="CFG-055")


def check_head_index(token_ids: Sequence[int], public: int) -> None:
    """Admit the token ids of an indexed proposal head, or raise ConfigError.

    Clause: CFG-056. Unique ids, each 0 to `public` - 1; so at most `public` rows.
    """
    token_ids, public = arguments.integers("token_ids", token_ids), arguments.integer("public", public)
    for row, token in enumerate(token_ids):
        if not 0 <= token < public:
            raise ConfigError(f"token_ids[{row}]: found {token}, expected 0 to {public - 1}",
                              key="token_ids", clause="CFG-056")  # fmt: skip
    if len(set(token_ids)) != len(token_ids):
        raise ConfigError("token_ids: an id occurs twice, expected unique ids", key="token_ids", clause="CFG-056")


def known_backend(backend: int) -> int:
    """Clause: CFG-074. The backend of a start. Raises ConfigError unless it is the number of one of the two."""
    if backend not in BACKENDS:
        known = ", ".join(f"{number} for {name}" for number, name in BACKENDS.items())
        raise ConfigError(f"backend: found {backend}, expected {known}", key="backend", clause="CFG-074")
    return backend


def proposal_rows(profile: Profile, vocab_size: int, public: int, indexed: int) -> int:
    """Rows of the head among which proposals are chosen.

    Clause: CFG-075. The `public` rows of the target's head, or where the profile has an indexed head, `indexed` rows of
    these; 0 is no index. Raises ConfigError.
    """
    if not 1 <= public <= vocab_size:
        raise ConfigError(f"public: found {public}, expected 1 to {vocab_size}", key="public", clause="CFG-075")
    limit = public if profile.axes["proposal_head"] == "full_or_index" else 0
    if not 0 <= indexed <= limit:
        raise ConfigError(f"indexed rows: found {indexed}, expected 0 to {limit}", key="indexed", clause="CFG-075")
    return indexed or public


def draft_start(
    source: bytes | Path, profile: Profile, target: TargetConfig, backend: int, requested: int | None, public: int,
    indexed: int,
) -> int:  # fmt: skip
    """K of a start with the draft of `source`, in the profile's own schema. Raises ConfigError.

    One `backend` (1 for DFlash, 2 for DFlash2), one width and one head hold for every request of a start.
    """
    backend = known_backend(arguments.integer("backend", backend))
    public, indexed = arguments.integer("public", public), arguments.integer("indexed", indexed)
    config = read_draft_config(source, profile, target, backend=backend)
    rows = proposal_rows(profile, target.vocab_size, public, indexed)
    if isinstance(config, DFlash2Config):
        dflash2.check_candidates(config.selector_top_k, rows)
    return draft_count(profile, config.block_size, requested)


def executable(config: DFlash2Config) -> bool:
    """Clause: CFG-066. Whether NInfer has kernels for a DFlash2 draft: a geometry, and local layers only.

    A draft for which it has none is read all the same. Raises ConfigError where `config` is no DFlash2Config.
    """
    arguments.check_instance("config", config, DFlash2Config)
    native = all(np.float32(getattr(config, name)) == np.float32(value) for name, value in NATIVE.items())
    return native and all(config.windows)
