"""What a config means, against the code that its writers run: transformers, and the authors' package."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.config import draft_tensors, read_draft_config, read_target_config, target_tensors
from dflash_spec.config.operations import OPERATIONS
from dflash_spec.errors import ConfigError
from dflash_spec.registry import load_profile
from dflash_vectors.suite import Case, all_cases

pytestmark = pytest.mark.peers
ZLAB = load_profile("zlab")
NEEDS_DEPTH = ("target-depth-unsaid",)
"""The authors' package works out the fallback taps even where the file has taps, so it always wants the depth."""


def answered(op: str) -> dict[str, tuple[Case, Any]]:
    """The cases of an op that zlab does not refuse, with their answers."""
    found = {}
    for case in all_cases("zlab", op):
        try:
            found[case.slug] = (case, OPERATIONS[op](**case.inputs, profile=ZLAB))
        except ConfigError:
            continue
    return found


def qwen3(text: Any, folder: Path) -> Any:
    """The text as transformers reads it from a folder."""
    from transformers import Qwen3Config

    (folder / "config.json").write_bytes(np.asarray(text, np.uint8).tobytes())
    return Qwen3Config.from_pretrained(folder)


def window(value: int | None) -> int:
    return value or 0


@pytest.mark.parametrize("slug", [slug for slug in answered("config.read_draft") if slug not in NEEDS_DEPTH])
def test_the_authors_package_makes_the_same_draft_of_a_config(slug: str, tmp_path: Path) -> None:
    from dflash.model import DFlashDraftModel

    case, ours = answered("config.read_draft")[slug]
    model = DFlashDraftModel(qwen3(case.inputs["draft"], tmp_path))
    layers = [layer.self_attn for layer in model.layers]
    assert [window(layer.sliding_window) for layer in layers] == ours.windows.tolist()
    assert [layer.is_causal for layer in layers] == ours.causal.astype(bool).tolist()
    assert list(model.target_layer_ids) == ours.taps.tolist()
    assert model.mask_token_id == ours.mask_id
    assert model.block_size == (16 if ours.block_size == -1 else ours.block_size)
    assert np.float32(model.config.rope_parameters["rope_theta"]) == ours.theta
    assert np.float32(model.config.rms_norm_eps) == ours.eps
    config = model.config
    assert ours.shape.tolist() == [
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, config.head_dim,
    ]  # fmt: skip
    assert model.fc.weight.shape == (config.hidden_size, len(ours.taps) * config.hidden_size)


@pytest.mark.parametrize("slug", answered("config.read_target"))
def test_transformers_makes_the_same_target_of_a_config(slug: str, tmp_path: Path) -> None:
    case, ours = answered("config.read_target")[slug]
    config = qwen3(case.inputs["target"], tmp_path)
    windows = [config.sliding_window if name == "sliding_attention" else 0 for name in config.layer_types]
    assert windows == ours.windows.tolist()
    assert np.float32(config.rope_parameters["rope_theta"]) == ours.theta
    assert np.float32(config.rms_norm_eps) == ours.eps
    assert ours.shape.tolist() == [
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, config.head_dim, config.vocab_size,
    ]  # fmt: skip
    assert bool(ours.tied) == config.tie_word_embeddings
    stops = config.eos_token_id
    assert ours.stop_ids.tolist() == ([] if stops is None else stops if isinstance(stops, list) else [stops])


def test_a_draft_whose_tensors_we_list_is_the_one_that_the_authors_package_builds(tmp_path: Path) -> None:
    from dflash.model import DFlashDraftModel

    case, _ = answered("config.read_draft")["plain"]
    texts = {name: np.asarray(value, np.uint8).tobytes() for name, value in case.inputs.items()}
    ours = draft_tensors(read_draft_config(texts["draft"], ZLAB, read_target_config(texts["target"])))
    model = DFlashDraftModel(qwen3(case.inputs["draft"], tmp_path))
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == ours


def test_a_dflash2_draft_whose_tensors_we_list_is_the_one_that_the_authors_package_builds(tmp_path: Path) -> None:
    from dflash.model import DFlash2DraftModel

    case, _ = answered("config.read_dflash2")["plain"]
    texts = {name: np.asarray(value, np.uint8).tobytes() for name, value in case.inputs.items()}
    ours = draft_tensors(read_draft_config(texts["draft"], ZLAB, read_target_config(texts["target"])))
    model = DFlash2DraftModel(qwen3(case.inputs["draft"], tmp_path))
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    on_disk = {name.removesuffix(".weight") if "codebook" in name else name: shape for name, shape in theirs.items()}
    assert on_disk == ours


def test_a_target_whose_tensors_we_list_is_the_one_that_transformers_builds(tmp_path: Path) -> None:
    from transformers import Qwen3ForCausalLM

    for slug in ("plain", "tied"):
        case, _ = answered("config.read_target")[slug]
        model = Qwen3ForCausalLM(qwen3(case.inputs["target"], tmp_path))
        model.save_pretrained(tmp_path / slug)
        ours = target_tensors(read_target_config(np.asarray(case.inputs["target"], np.uint8).tobytes()))
        Checkpoint.open(tmp_path / slug).check(ours)
        assert json.loads((tmp_path / slug / "config.json").read_text())["tie_word_embeddings"] is (slug == "tied")
        assert read_target_config(tmp_path / slug).tied is (slug == "tied")
