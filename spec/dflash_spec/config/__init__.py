"""Configs of drafts, targets and trainers: read strictly, one named error for each broken rule."""

from dflash_spec.config.draft import DFlash2Config, DraftConfig, read_draft_config
from dflash_spec.config.inventory import draft_tensors, target_tensors
from dflash_spec.config.start import check_concurrency, check_head_index, draft_start, executable
from dflash_spec.config.taps import check_reduced_taps, half_even_taps, integer_step_taps
from dflash_spec.config.target import TargetConfig, read_target_config
from dflash_spec.config.trainer import TrainerConfig, read_trainer_config
from dflash_spec.config.width import bounded_count, draft_count, matched_count

__all__ = [
    "DFlash2Config",
    "DraftConfig",
    "TargetConfig",
    "TrainerConfig",
    "bounded_count",
    "check_concurrency",
    "check_head_index",
    "check_reduced_taps",
    "draft_count",
    "draft_start",
    "draft_tensors",
    "executable",
    "half_even_taps",
    "integer_step_taps",
    "matched_count",
    "read_draft_config",
    "read_target_config",
    "read_trainer_config",
    "target_tensors",
]
