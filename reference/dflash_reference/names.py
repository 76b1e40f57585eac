"""Domain types: three kinds of integer that look alike, and mix silently."""

from __future__ import annotations

from typing import NewType

TokenId = NewType("TokenId", int)
"""A row of the embedding table and of the head."""

Position = NewType("Position", int)
"""An absolute position in the sequence; the first prompt token is at 0."""

LayerId = NewType("LayerId", int)
"""A zero-based block of the target."""
