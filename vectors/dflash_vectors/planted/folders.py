"""Planted pairs on disk, as the published checkpoint folders that every loader reads."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_spec.files import write_tensors
from dflash_spec.tensors import Array, Tensor

from dflash_vectors import inputs
from dflash_vectors.errors import PlanError
from dflash_vectors.planted.options import DTYPES
from dflash_vectors.planted.pair import Planted

TOLD = "planted.json"
NAMES = ("target", "draft", "prompts.txt", TOLD)


def write(folder: Path, planted: Planted, dtype: str = "F32", shards: int = 1) -> None:
    """Write `folder/target` and `folder/draft`, each a `config.json` and `model.safetensors`, or `shards` files and
    their index; `prompts.txt`, a prompt of ids a line; and `planted.json`, the options and the files' names.

    An earlier planted pair is replaced, by which a command or a script can be run again; anything else is left alone.
    Each of the two folders appears whole or not at all.

    Raises PlanError for another dtype than F32 and BF16 or more shards than tensors, FileExistsError where something
    is in the way that is no planted pair.
    """
    if dtype not in DTYPES:
        raise PlanError(f"dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    fewest = min(len(planted.target), len(planted.draft))
    if not 1 <= shards <= fewest:
        raise PlanError(f"shards {shards}, expected 1 to {fewest}, the tensors of the smaller model")
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        models = {"target": (planted.target_config, planted.target), "draft": (planted.draft_config, planted.draft)}
        for name, (config, tensors) in models.items():
            _write_model(new / name, {**config, "dtype": DTYPES[dtype]}, tensors, dtype, shards)
        lines = [" ".join(map(str, prompt)) + "\n" for prompt in planted.prompts]
        (new / "prompts.txt").write_text("".join(lines), "utf-8")
        told = {"options": asdict(planted.options), "dtype": dtype, "files": _files(new)}
        (new / TOLD).write_text(json.dumps(told, indent=1) + "\n", "utf-8")
        old.mkdir()
        for name in NAMES:
            if (folder / name).exists():
                os.replace(folder / name, old / name)
            os.replace(new / name, folder / name)


def _check_free(folder: Path) -> None:
    """Raise FileExistsError unless all that is in the way was written by `write`, and nothing added to it since."""
    there = [name for name in NAMES if os.path.lexists(folder / name)]
    try:
        ours = json.loads((folder / TOLD).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        ours = []
    strange = sorted({*_files(folder, there)} - {*ours, TOLD}) if ours else there
    if strange:
        raise FileExistsError(
            f"{folder / strange[0]} is there already and no part of a planted pair, expected a new folder, or one that "
            "holds a planted pair to replace"
        )


def _files(folder: Path, names: Iterable[str] = NAMES) -> list[str]:
    """The files of a pair by their paths within its folder; a link stands for itself."""
    found = []
    for name in names:
        path = folder / name
        within = sorted(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
        found += [str(each.relative_to(folder)) for each in within if os.path.lexists(each)]
    return found


def _write_model(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array], dtype: str, shards: int
) -> None:
    folder.mkdir(parents=True)
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
