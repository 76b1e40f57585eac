"""What from_pretrained reads: shards, BF16 files, tied heads; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine
from dflash_accelerated.models.qwen3 import Qwen3Vocabulary
from dflash_spec.errors import CheckpointError, ConfigError, RequestError
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
    assert isinstance(vocabulary, Qwen3Vocabulary)
    assert torch.equal(vocabulary.head.weight, vocabulary.table[:67])


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


def test_a_dflash2_folder_of_five_layers_holds_81_tensors(write_random_pair: Write, load: Load, tmp_path: Path) -> None:
    deep = {"num_hidden_layers": 5, "layer_types": ["sliding_attention"] * 5}
    folder = write_random_pair(tmp_path / "pair", draft=deep, second=True)
    assert len(read_tensors(folder / "draft" / "model.safetensors")) == 81
    assert len(load(folder).generate(PROMPT, 7, stop_ids=[]).tokens) == 7


@pytest.mark.parametrize(("second", "claimed"), [(False, "DFlash2DraftModel"), (True, "DFlashDraftModel")])
def test_no_draft_runs_as_one_of_the_other_version(
    write_random_pair: Write, load: Load, tmp_path: Path, second: bool, claimed: str
) -> None:
    folder = write_random_pair(tmp_path / "pair", second=second)
    config = folder / "draft" / "config.json"
    text = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(text | {"architectures": [claimed]}), "utf-8")
    with pytest.raises(ConfigError):
        load(folder)


@pytest.mark.parametrize("name", ["predecessor_codebook", "successor_codebook", "hidden_projection.weight"])
def test_a_codebook_that_is_missing_or_has_a_suffix_is_refused_by_name(
    write_random_pair: Write, load: Load, tmp_path: Path, name: str
) -> None:
    file = write_random_pair(tmp_path / "pair", second=True) / "draft" / "model.safetensors"
    tensors = read_tensors(file)
    moved = tensors.pop(f"candidate_selector.{name}")
    write_tensors(file, tensors | {f"candidate_selector.{name}.weight": moved})
    with pytest.raises(CheckpointError, match=rf"candidate_selector\.{name}"):
        load(tmp_path / "pair")


def test_candidates_that_exceed_the_proposal_head_are_refused(
    write_random_pair: Write, load: Load, tmp_path: Path
) -> None:
    folder = write_random_pair(tmp_path / "pair", second=True)
    ninfer = {"profile": "ninfer", "dtype": torch.bfloat16, "draft_tokens": 3}
    assert load(folder, public_tokens=16).generate([1, 2], 3).tokens
    with pytest.raises(ConfigError, match="selector_top_k"):
        load(folder, public_tokens=15)
    with pytest.raises(ConfigError, match="selector_top_k"):
        load(folder, proposal_ids=range(20, 35), **ninfer)
    with pytest.raises(ConfigError, match="an id occurs twice"):
        load(folder, proposal_ids=[5] * 16, **ninfer)
    with pytest.raises(RequestError, match="proposal_ids in profile zlab, expected None: profile ninfer has it"):
        load(folder, proposal_ids=range(20, 40))


@pytest.mark.parametrize("second", [False, True])
def test_an_indexed_head_proposes_its_own_ids_alone_and_moves_no_token(
    write_random_pair: Write, load: Load, tmp_path: Path, second: bool
) -> None:
    folder = write_random_pair(tmp_path / "pair", second=second)
    ninfer = {"profile": "ninfer", "dtype": torch.bfloat16, "draft_tokens": 3}
    index = [60, 3, 41, 7, 22, 15, 9, 33, 58, 1, 44, 12, 27, 50, 5, 38, 19]
    made = load(folder, proposal_ids=index, **ninfer).generate(PROMPT, 30, stop_ids=[])
    plain = load(folder, **ninfer).generate(PROMPT, 30, stop_ids=[])
    assert made.tokens == plain.tokens
    assert made.proposals != plain.proposals
    assert {token for tokens in made.proposals for token in tokens} <= set(index)
