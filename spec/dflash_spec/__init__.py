"""What must hold: clauses, ops, profiles, geometries and glossary as data, configs and tensor files read strictly."""

from dflash_spec.checkpoint import Checkpoint
from dflash_spec.config import (
    DFlash2Config,
    DraftConfig,
    TargetConfig,
    TrainerConfig,
    draft_count,
    draft_tensors,
    read_draft_config,
    read_target_config,
    read_trainer_config,
    target_tensors,
)
from dflash_spec.errors import ConfigError, DFlashError
from dflash_spec.geometry import Geometry, load_geometries
from dflash_spec.glossary import Term, load_glossary
from dflash_spec.registry import Clause, Op, Profile, load_clauses, load_ops, load_profile
from dflash_spec.tensors import Tensor

__all__ = [
    "Checkpoint",
    "Clause",
    "ConfigError",
    "DFlash2Config",
    "DFlashError",
    "DraftConfig",
    "Geometry",
    "Op",
    "Profile",
    "TargetConfig",
    "Tensor",
    "Term",
    "TrainerConfig",
    "draft_count",
    "draft_tensors",
    "load_clauses",
    "load_geometries",
    "load_glossary",
    "load_ops",
    "load_profile",
    "read_draft_config",
    "read_target_config",
    "read_trainer_config",
    "target_tensors",
]
