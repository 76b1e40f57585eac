"""What a start may ask for besides its width: concurrent requests and a proposal head of its own."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_spec.config import arguments
from dflash_spec.errors import ConfigError
from dflash_spec.registry import Profile


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
