"""Planted pairs on disk, as the published checkpoint folders that every loader reads."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_spec.files import write_tensors
from dflash_spec.tensors import Array, Tensor

from dflash_vectors import inputs
from dflash_vectors.planted.options import DTYPES
from dflash_vectors.planted.pair import Planted


def write(folder: Path, planted: Planted, dtype: str = "F32", shards: int = 1) -> None:
    """Write `folder/target` and `folder/draft`, each a `config.json` and `model.safetensors`, or `shards` files and
    their index. Each of the two folders appears whole or not at all.

    Raises ValueError for another dtype than F32 and BF16, FileExistsError if a folder is already there.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as scratch:
        models = {"target": (planted.target_config, planted.target), "draft": (planted.draft_config, planted.draft)}
        for name, (config, tensors) in models.items():
            if (folder / name).exists():
                raise FileExistsError(f"{folder / name} exists already; planted pairs are never written over another")
            _write_model(Path(scratch) / name, {**config, "dtype": DTYPES[dtype]}, tensors, dtype, shards)
        for name in models:
            os.replace(Path(scratch) / name, folder / name)


def _write_model(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array], dtype: str, shards: int
) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    held = {name: Tensor.of(dtype, inputs.represent(value, dtype), name) for name, value in tensors.items()}
    if shards == 1:
        write_tensors(folder / "model.safetensors", held)
        return
    names = sorted(held)
    files: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        write_tensors(folder / file, {name: held[name] for name in part})
        files.update(dict.fromkeys(part, file))
    size = sum(len(tensor.encode()) for tensor in held.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
