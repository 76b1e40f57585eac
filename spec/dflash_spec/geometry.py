"""Geometries: the sizes of official drafts with their targets, and tiny ones of the same structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dflash_spec.config.dflash2 import SCALARS, SIZES
from dflash_spec.errors import SpecDataError
from dflash_spec.registry import ROOT, check_keys, read_yaml

DFLASH2_SIZES = ("conv_taps", "conv_group", "selector_rank", "selector_top_k")
NAMES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class DFlash2Sizes:
    """What DFlash2 adds: taps, channels of a group, rank, candidates, and the head's scalars (1 and 0 where none)."""

    conv_taps: int
    conv_group: int
    selector_rank: int
    selector_top_k: int
    output_multiplier: float = 1.0
    softcap: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether the head's scores are neither scaled nor capped."""
        return (self.output_multiplier, self.softcap) == (1.0, 0.0)


@dataclass(frozen=True)
class Geometry:
    """Sizes of a draft and of what it borrows from its target, in channels, heads, layers, rows and tokens.

    `windows` has one entry a draft layer, 0 for a full one. Rows of the head from `public` on are padding.
    """

    name: str
    summary: str
    source: str
    like: tuple[str, ...]
    """The official geometries whose structure a tiny one has; empty for an official one."""
    target_layers: int
    hidden_size: int
    vocab_size: int
    public: int
    mask_id: int
    taps: tuple[int, ...]
    layers: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int, ...]
    eps: float
    theta: float
    block_size: int
    max_positions: int
    dflash2: DFlash2Sizes | None = None
    """None for a DFlash draft."""

    @property
    def official(self) -> bool:
        return not self.like

    def _body(self) -> dict[str, Any]:
        sizes = sorted(set(self.windows) - {0})
        types = [NAMES[window > 0] for window in self.windows]
        body = {
            "architectures": ["DFlash2DraftModel" if self.dflash2 else "DFlashDraftModel"], "model_type": "qwen3",
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "num_hidden_layers": self.layers, "max_position_embeddings": self.max_positions, "rms_norm_eps": self.eps,
            "rope_parameters": {"rope_theta": self.theta}, "layer_types": types,
        }  # fmt: skip
        return body | ({"sliding_window": sizes[0]} if sizes else {})

    def _nested(self) -> dict[str, Any]:
        nested: dict[str, Any] = {"target_layer_ids": list(self.taps), "mask_token_id": self.mask_id}
        if self.dflash2 is None:
            return nested
        values = (self.dflash2.conv_taps, self.dflash2.conv_group, self.dflash2.selector_rank,
                  self.dflash2.selector_top_k)  # fmt: skip
        return nested | dict(zip(SIZES, values, strict=True))

    def component(self) -> dict[str, Any]:
        """The draft's config in NInfer's component schema. Raises SpecDataError for scalars, which that has not."""
        if self.dflash2 and not self.dflash2.plain:
            raise SpecDataError(f"{self.name}: found scaled or capped scores, which the component schema cannot say")
        return self._body() | {"dflash_config": self._nested()}

    def published(self) -> dict[str, Any]:
        """The draft's config in the published schema, without `is_causal`."""
        nested = self._nested() | {"block_size": self.block_size}
        if self.dflash2 and not self.dflash2.plain:
            nested |= dict(zip(SCALARS, (self.dflash2.output_multiplier, self.dflash2.softcap), strict=True))
        body = self._body() | {
            "hidden_size": self.hidden_size, "vocab_size": self.vocab_size, "num_target_layers": self.target_layers,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "dflash_config": nested,
        }  # fmt: skip
        return body | ({"use_sliding_window": True} if any(self.windows) else {})


def read_geometry(path: Path) -> Geometry:
    """The geometry in `path`. Raises SpecDataError."""
    data = read_yaml(path)
    sizes = (
        "target_layers", "hidden_size", "vocab_size", "public", "mask_id", "layers", "intermediate_size", "heads",
        "kv_heads", "head_dim", "block_size", "max_positions",
    )  # fmt: skip
    check_keys(data, path.name, ("summary", "source", "taps", "windows", "eps", "theta", *sizes), ("like", "dflash2"))
    for key in sizes:
        if type(data[key]) is not int or data[key] < 1:
            raise SpecDataError(f"{path.name}: {key}: found {data[key]!r}, expected an integer from 1 on")
    for key in ("taps", "windows", "like"):
        if not isinstance(data.get(key, []), list):
            raise SpecDataError(f"{path.name}: {key}: found {data[key]!r}, expected a list")
    if "dflash2" in data:
        more = f"{path.name}: dflash2"
        check_keys(data["dflash2"], more, DFLASH2_SIZES, ("output_multiplier", "softcap"))
        for key, value in data["dflash2"].items():
            if type(value) is not (int if key in DFLASH2_SIZES else float) or value <= 0:
                raise SpecDataError(f"{more}: {key}: found {value!r}, expected a positive number")
    return _geometry(path.stem, data, path.name)


def _geometry(name: str, data: Mapping[str, Any], where: str) -> Geometry:
    windows = tuple(data["windows"])
    if len(windows) != data["layers"] or len(set(windows) - {0}) > 1:
        raise SpecDataError(f"{where}: windows: found {list(windows)}, expected one a layer, 0 or one size")
    members = {**data, "taps": tuple(data["taps"]), "windows": windows, "like": tuple(data.get("like", ()))}
    members |= {"eps": float(data["eps"]), "theta": float(data["theta"])}
    if "dflash2" in data:
        members["dflash2"] = DFlash2Sizes(**data["dflash2"])
    return Geometry(name=name, **members)


@cache
def load_geometries() -> dict[str, Geometry]:
    """Every geometry, by name. Raises SpecDataError."""
    geometries = {path.stem: read_geometry(path) for path in sorted((ROOT / "geometries").glob("*.yaml"))}
    for geometry in geometries.values():
        for name in geometry.like:
            if name not in geometries or not geometries[name].official:
                raise SpecDataError(f"{geometry.name}.yaml: like: {name!r} is no official geometry")
    return geometries
