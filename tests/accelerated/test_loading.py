"""What from_pretrained reads: shards, BF16 files, tied heads; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine
from dflash_spec.errors import CheckpointError, RequestError, UnsupportedConfigError
from dflash_spec.files import read_tensors, write_tensors
from dflash_spec.tensors import Tensor
from dflash_vectors import planted

Load = Callable[..., Engine]
Write = Callable[..., Path]

PROMPT = [4, 8, 15, 16, 23, 42]


def test_shards_are_read_as_one_model(load: Load, tmp_path: Path) -> None:
    plan = planted.pair("small")
    planted.write(tmp_path / "one", plan)
    planted.write(tmp_path / "five", plan, shards=5)
    assert len(list((tmp_path / "five" / "target").glob("*.safetensors"))) == 5
    prompt = plan.prompts[0]
    assert load(tmp_path / "five").generate(prompt, 25) == load(tmp_path / "one").generate(prompt, 25)


def test_the_files_dtype_is_kept_where_none_is_named(write_random_pair: Write, load: Load, tmp_path: Path) -> None:
    narrow = write_random_pair(tmp_path / "narrow", dtypes=("BF16", "BF16"))
    wide = write_random_pair(tmp_path / "wide")
    assert load(narrow).numerics.act == torch.bfloat16
    assert load(wide).numerics.act == torch.float32


def test_bf16_files_and_fp32_files_of_bf16_values_are_one_model(
    write_random_pair: Write, load: Load, tmp_path: Path
) -> None:
    narrow = write_random_pair(tmp_path / "narrow", dtypes=("BF16", "BF16"))
    wide = write_random_pair(tmp_path / "wide")
    for dtype in (torch.float32, torch.bfloat16):
        made = [load(folder, dtype=dtype).generate(PROMPT, 30) for folder in (narrow, wide)]
        assert made[0] == made[1]


def test_two_folders_of_two_dtypes_need_a_word_from_the_caller(
    write_random_pair: Write, load: Load, tmp_path: Path
) -> None:
    folder = write_random_pair(tmp_path / "mixed", dtypes=("BF16", "F32"))
    with pytest.raises(RequestError, match=r"the target is torch.bfloat16 and the draft torch.float32"):
        load(folder)
    assert load(folder, dtype=torch.float32).numerics.act == torch.float32


def test_a_tied_head_is_the_embedding_table(write_random_pair: Write, load: Load, tmp_path: Path) -> None:
    engine = load(write_random_pair(tmp_path / "tied", target={"tie_word_embeddings": True}))
    vocabulary = engine.target.vocabulary
    rows = vocabulary.embed(torch.arange(67))
    assert torch.equal(vocabulary.logits(rows[:3]), rows[:3] @ rows.T)


def test_a_width_that_no_one_names_is_the_files(write_random_pair: Write, load: Load, tmp_path: Path) -> None:
    engine = load(write_random_pair(tmp_path / "pair"))
    assert engine.draft_tokens == 5
    assert len(engine.generate(PROMPT, 30, stop_ids=[]).proposals[0]) == 5


def test_a_draft_of_block_one_proposes_nothing(write_random_pair: Write, load: Load, tmp_path: Path) -> None:
    alone = {"dflash_config": {"block_size": 1, "mask_token_id": 65, "target_layer_ids": [2, 0]}}
    engine = load(write_random_pair(tmp_path / "pair", draft=alone))
    made = engine.generate(PROMPT, 12, stop_ids=[])
    assert made.tokens == engine.decode_plain(PROMPT, 12, stop_ids=[]).tokens
    assert set(made.proposals) == {()}


@pytest.mark.parametrize("model", ["target", "draft"])
def test_a_truncated_file_is_refused_with_its_path(
    write_random_pair: Write, load: Load, tmp_path: Path, model: str
) -> None:
    folder = write_random_pair(tmp_path / "pair")
    file = folder / model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=str(file)):
        load(folder)


def test_a_missing_tensor_is_refused_by_name(write_random_pair: Write, load: Load, tmp_path: Path) -> None:
    deeper = write_random_pair(tmp_path / "pair")
    config = deeper / "draft" / "config.json"
    text = json.loads(config.read_text("utf-8"))
    text |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    config.write_text(json.dumps(text), "utf-8")
    with pytest.raises(CheckpointError, match=r"layers\.2\.input_layernorm\.weight"):
        load(deeper)


@pytest.mark.parametrize("model", ["target", "draft"])
def test_a_tensor_that_no_one_asked_for_is_refused_by_name(
    write_random_pair: Write, load: Load, tmp_path: Path, model: str
) -> None:
    file = write_random_pair(tmp_path / "pair") / model / "model.safetensors"
    write_tensors(file, read_tensors(file) | {"candidate_selector.successor_codebook": Tensor.of("F32", [[1.0]])})
    with pytest.raises(CheckpointError, match=r"candidate_selector\.successor_codebook"):
        load(tmp_path / "pair")


def test_a_dflash2_draft_is_readable_but_not_executable_here(
    write_random_pair: Write, load: Load, tmp_path: Path
) -> None:
    folder = write_random_pair(tmp_path / "pair")
    config = folder / "draft" / "config.json"
    text = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(text | {"architectures": ["DFlash2DraftModel"]}), "utf-8")
    with pytest.raises(UnsupportedConfigError):
        load(folder)
