"""Planted pairs on disk, as the published checkpoint folders that every loader reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_spec.files import unique_members, write_tensors
from dflash_spec.tensors import Array, Tensor

from dflash_vectors import inputs
from dflash_vectors.errors import PlanError
from dflash_vectors.planted.options import DTYPES
from dflash_vectors.planted.pair import Planted
from dflash_vectors.scratch import scratch

TOLD = "planted.json"
TOLD_LIMIT = 2**24
"""Bytes, more than the options of the largest pair take."""
MOVED = ("target", "draft", "prompts.txt")
EXPECTED = "expected a new folder, or one that holds a planted pair to replace"


def write(folder: Path, planted: Planted, dtype: str = "F32", shards: int = 1) -> None:
    """Write `folder/target` and `folder/draft`, each a `config.json` and `model.safetensors`, or `shards` files and
    their index; `prompts.txt`, a prompt of ids a line; and `planted.json`, the options and the files' names.

    An earlier planted pair is replaced, by which a command or a script can be run again; anything else is left alone.
    Each of the two folders appears whole or not at all. An interruption may leave one of them missing or of the earlier
    pair; `planted.json` names the files of both pairs then, by which writing again replaces what is there.

    Raises PlanError for another dtype than F32 and BF16 or more shards than tensors, FileExistsError where something
    is in the way that is no planted pair, or whose `planted.json` is damaged.
    """
    if dtype not in DTYPES:
        raise PlanError(f"dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    fewest = min(len(planted.target), len(planted.draft))
    if not 1 <= shards <= fewest:
        raise PlanError(f"shards {shards}, expected 1 to {fewest}, the tensors of the smaller model")
    replaced = _replaceable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with scratch(folder, ".writing-") as beside:
        new, old = beside / "new", beside / "old"
        models = {"target": (planted.target_config, planted.target), "draft": (planted.draft_config, planted.draft)}
        for name, (config, tensors) in models.items():
            _write_model(new / name, {**config, "dtype": DTYPES[dtype]}, tensors, dtype, shards)
        lines = [" ".join(map(str, prompt)) + "\n" for prompt in planted.prompts]
        (new / "prompts.txt").write_text("".join(lines), "utf-8")
        files = _files(new)
        _tell(new / TOLD, {"options": asdict(planted.options), "dtype": dtype, "files": files})
        _tell(beside / TOLD, {"files": sorted({*replaced, *files})})
        # Until all is in place, what is told is the files of both pairs: wherever this stops, the next run knows them.
        os.replace(beside / TOLD, folder / TOLD)
        old.mkdir()
        for name in MOVED:
            if (folder / name).exists():
                os.replace(folder / name, old / name)
            os.replace(new / name, folder / name)
        os.replace(new / TOLD, folder / TOLD)


def _tell(path: Path, told: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def _replaceable(folder: Path) -> set[str]:
    """The files of the planted pair in `folder`, of which there may be none.

    Raises FileExistsError unless all that is in the way was written by `write`, and nothing added to it since.
    """
    try:
        ours = _told(folder / TOLD)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileExistsError(
            f"{folder / TOLD} is there already and tells of no planted pair: {reason}, {EXPECTED}"
        ) from error
    strange = sorted({*_files(folder)} - ours)
    if strange:
        raise FileExistsError(f"{folder / strange[0]} is there already and no part of a planted pair, {EXPECTED}")
    return ours


def _told(path: Path) -> set[str]:
    """A `planted.json` and the files that it names; none where it is not there. Raises ValueError if it is damaged."""
    if not os.path.lexists(path):
        return set()
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError("not a file")
    with path.open("rb") as file:
        text = file.read(TOLD_LIMIT + 1)
    if len(text) > TOLD_LIMIT:
        raise ValueError(f"over {TOLD_LIMIT} bytes")
    told = json.loads(text, object_pairs_hook=unique_members)
    names = told.get("files") if isinstance(told, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("names no files")
    return {*names, TOLD}


def _files(folder: Path) -> list[str]:
    """The files of a pair by their paths within its folder; a link stands for itself."""
    found = []
    for name in (*MOVED, TOLD):
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
