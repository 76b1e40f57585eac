"""DFlash2's candidate path: which candidate of each slot is proposed, and by which law."""

from dflash_accelerated.ops.selector.torch import Path, Selector, project, walk

__all__ = ["Path", "Selector", "project", "walk"]
