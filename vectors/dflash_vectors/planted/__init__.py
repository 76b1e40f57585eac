"""Planted pairs: a target and a draft that follows it up to chosen slots, in the published formats."""

from dflash_vectors.planted.folders import write
from dflash_vectors.planted.options import PRESETS, Options
from dflash_vectors.planted.pair import Planted, component_config, pair
from dflash_vectors.planted.playing import play

__all__ = ["PRESETS", "Options", "Planted", "component_config", "pair", "play", "write"]
