"""How many drafts a round may hold."""

from __future__ import annotations

from dflash_spec.config import arguments
from dflash_spec.errors import ConfigError
from dflash_spec.registry import Profile

FREE_LIMIT = 15
DEFAULT_BLOCK = 16


def free_count(draft_tokens: int | None) -> int:
    """Clause: CFG-050. K is the start's own choice, 1 to 15. Raises ConfigError outside it or where none is named."""
    if draft_tokens is None or not 1 <= draft_tokens <= FREE_LIMIT:
        raise ConfigError(f"draft_tokens: found {draft_tokens}, expected 1 to {FREE_LIMIT}",
                          key="draft_tokens", clause="CFG-050")  # fmt: skip
    return draft_tokens


def file_count(block_size: int | None) -> int:
    """Clause: CFG-051. K is `block_size` - 1, one slot being the anchor's; an absent `block_size` is 16.

    Raises ConfigError where `block_size` is below 1. A block of 1 has no draft: K is 0.
    """
    if block_size is not None and block_size < 1:
        raise ConfigError(f"block_size: found {block_size}, expected at least 1", key="block_size", clause="CFG-051")
    return (DEFAULT_BLOCK if block_size is None else block_size) - 1


def override_count(block_size: int | None, draft_tokens: int | None) -> int:
    """Clause: CFG-052. A requested K of 1 or more beats the file's; without a request the file's holds (CFG-051)."""
    if draft_tokens is None:
        return file_count(block_size)
    if draft_tokens < 1:
        raise ConfigError(f"draft_tokens: found {draft_tokens}, expected at least 1",
                          key="draft_tokens", clause="CFG-052")  # fmt: skip
    return draft_tokens


def _integers(block_size: object, draft_tokens: object) -> tuple[int | None, int | None]:
    return arguments.optional("block_size", block_size), arguments.optional("draft_tokens", draft_tokens)


def draft_count(profile: Profile, block_size: int | None, draft_tokens: int | None) -> int:
    """K, the drafts of a full round, by the profile's width rule. Raises ConfigError, for wrong types too."""
    arguments.check_instance("profile", profile, Profile)
    block_size, draft_tokens = _integers(block_size, draft_tokens)
    if profile.axes["width_rule"] == "free":
        return free_count(draft_tokens)
    return override_count(block_size, draft_tokens)


def matched_count(block_size: int | None, draft_tokens: int | None) -> int:
    """K where the block is compiled at the file's width.

    Clause: CFG-053. Raises ConfigError where a requested K is not `block_size` - 1.
    """
    block_size, draft_tokens = _integers(block_size, draft_tokens)
    drafts = file_count(block_size)
    if draft_tokens is not None and draft_tokens != drafts:
        raise ConfigError(f"draft_tokens: found {draft_tokens}, expected {drafts}",
                          key="draft_tokens", clause="CFG-053")  # fmt: skip
    return drafts


def bounded_count(block_size: int | None, draft_tokens: int | None) -> int:
    """K where a block may be shortened but not widened.

    Clause: CFG-054. Raises ConfigError where a requested K is not 1 to `block_size` - 1.
    """
    block_size, draft_tokens = _integers(block_size, draft_tokens)
    drafts = file_count(block_size)
    if draft_tokens is None:
        return drafts
    if not 1 <= draft_tokens <= drafts:
        raise ConfigError(f"draft_tokens: found {draft_tokens}, expected 1 to {drafts}",
                          key="draft_tokens", clause="CFG-054")  # fmt: skip
    return draft_tokens
