"""The spec's own data: registry, geometries, glossary and ledger, and how each is refused when malformed."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from dflash_spec import ledger, registry
from dflash_spec.config import DFlash2Config, TargetConfig, half_even_taps, read_draft_config, read_target_config
from dflash_spec.errors import SpecDataError
from dflash_spec.geometry import Geometry, load_geometries, read_geometry
from dflash_spec.glossary import load_glossary, read_glossary
from dflash_spec.tensors import STORED
from dflash_vectors.suites import cfg
from hypothesis import given
from hypothesis import strategies as st

READERS = [registry.read_clauses, registry.read_ops, registry.read_profile, read_geometry, read_glossary]
CLAUSE = """chapter: TAP
title: Taps
clauses:
  TAP-001: {level: must, kind: exact, statement: One., source: here, ops: [tap.concat], without: Woe.}
"""
OP = "tap.concat: {chapter: TAP, summary: Taps., inputs: {x: [F32, [N]]}, outputs: {y: [F32, any, bounded]}}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text)
    return path


def test_the_whole_spec_loads() -> None:
    assert registry.load_clauses()
    assert registry.load_ops()
    assert all(registry.load_profile(name).name == name for name in (*registry.PROFILES, "zlab-2026-04"))


def test_every_op_of_a_clause_exists_and_every_dtype_is_known() -> None:
    ops = registry.load_ops()
    for clause in registry.load_clauses().values():
        assert set(clause.ops) <= ops.keys(), clause.id
    for op in ops.values():
        for spec in (*op.inputs, *op.stages, *op.outputs):
            for name in registry.PROFILES:
                assert spec.dtype_for(registry.load_profile(name)) in STORED, f"{op.name}: {spec.name}"


def test_both_profiles_choose_on_the_same_axes() -> None:
    ninfer, zlab = (registry.load_profile(name) for name in registry.PROFILES)
    assert ninfer.axes.keys() == zlab.axes.keys()
    assert ninfer.dtypes.keys() == zlab.dtypes.keys()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("TAP-001:", "TAP-1:", r"x.yaml: TAP-1: expected an id TAP-nnn"),
        ("TAP-001:", "CTX-001:", r"x.yaml: CTX-001: expected an id TAP-nnn"),
        ("must", "shall", "level 'shall' or kind 'exact' is not known"),
        ("exact", "sure", "level 'must' or kind 'sure' is not known"),
        (", without: Woe.", "", "x.yaml: TAP-001: key 'without' is missing"),
        (", without: Woe.", ", without: Woe., more: 1", "x.yaml: TAP-001: unknown key 'more'"),
        (", without: Woe.", ", without: Woe., level: may", "key 'level' occurs twice"),
        (", without: Woe.", ", without: Woe., profiles: [vllm]", r"profiles \('vllm',\)"),
        ("[tap.concat]", "tap.concat", "ops: found 'tap.concat', expected a list of names"),
        ("One.", "''", "statement: found '', expected a sentence"),
        ("title: Taps", "titel: Taps", "unknown key 'titel'"),
    ],
)
def test_a_malformed_clause_is_told(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    registry.read_clauses(write(tmp_path, CLAUSE))
    assert CLAUSE.count(old) == 1
    with pytest.raises(SpecDataError, match=complaint):
        registry.read_clauses(write(tmp_path, CLAUSE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("summary: Taps., ", "", "x.yaml: tap.concat: key 'summary' is missing"),
        ("bounded", "close", "y: comparison 'close', expected one of bits"),
        ("[F32, [N]]", "F32", r"x: found 'F32', expected \[dtype, shape, comparison\]"),
        ("[F32, [N]]", "[F32, N]", "x: shape 'N', expected a list of symbols or any"),
        ("{x: [F32, [N]]}", "[x]", r"found \['x'\], expected a mapping"),
    ],
)
def test_a_malformed_op_is_told(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    registry.read_ops(write(tmp_path, OP))
    assert OP.count(old) == 1
    with pytest.raises(SpecDataError, match=complaint):
        registry.read_ops(write(tmp_path, OP.replace(old, new)))


def test_an_unknown_profile_is_told() -> None:
    with pytest.raises(SpecDataError, match="profile 'vllm', expected one of ninfer, zlab"):
        registry.load_profile("vllm")


@pytest.mark.parametrize("read", READERS)
def test_a_data_file_that_is_missing_damaged_or_no_mapping_is_told(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    with pytest.raises(SpecDataError, match=r"absent\.yaml: cannot be read"):
        read(tmp_path / "absent.yaml")
    for text in ("{", "- 1", "", "a: 1\na: 2", "\x00", "a: !!python/object:os.system 1"):
        with pytest.raises(SpecDataError, match=r"x\.yaml"):
            read(write(tmp_path, text))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(READERS), st.data())
def test_any_value_of_a_key_is_read_or_told(read: Callable[[Path], object], data: st.DataObject) -> None:
    keys = st.sampled_from(
        ["chapter", "title", "clauses", "TAP-001", "name", "axes", "dtypes", "tap.concat", "summary"]
    )
    content = data.draw(st.dictionaries(keys, VALUES, max_size=4))
    with TemporaryDirectory() as folder:
        path = write(Path(folder), json.dumps(content))
        with suppress(SpecDataError):
            read(path)


def stand_in(geometry: Geometry) -> TargetConfig:
    """A dense target of the depth, width and vocabulary that the geometry's draft is made for."""
    sizes = {"num_hidden_layers": geometry.target_layers, "hidden_size": geometry.hidden_size,
             "vocab_size": geometry.vocab_size}  # fmt: skip
    return read_target_config(cfg.edited(cfg.TARGET, sizes))


@pytest.mark.parametrize("geometry", load_geometries().values(), ids=lambda geometry: geometry.name)
def test_a_geometry_reads_back_in_both_schemas(geometry: Geometry) -> None:
    target = stand_in(geometry)
    texts = {"zlab": geometry.published()}
    if geometry.dflash2 is None or geometry.dflash2.plain:
        texts["ninfer"] = geometry.component()
    for name, config in texts.items():
        found = read_draft_config(json.dumps(config).encode(), registry.load_profile(name), target)
        assert (found.taps, found.windows, found.mask_id) == (geometry.taps, geometry.windows, geometry.mask_id)
        assert (found.heads, found.kv_heads, found.head_dim) == (geometry.heads, geometry.kv_heads, geometry.head_dim)
        assert (found.layers, found.intermediate_size) == (geometry.layers, geometry.intermediate_size)
        assert found.unknown == ()
        assert isinstance(found, DFlash2Config) is (geometry.dflash2 is not None)
        if isinstance(found, DFlash2Config) and geometry.dflash2:
            told = {key: np.float32(value) for key, value in asdict(geometry.dflash2).items()}
            assert {key: getattr(found, key) for key in told} == told


def test_scaled_scores_have_no_place_in_the_component_schema() -> None:
    with pytest.raises(SpecDataError, match="muse-glimmer-30b: found scaled or capped scores"):
        load_geometries()["muse-glimmer-30b"].component()


def test_every_official_geometry_has_a_tiny_one_of_its_structure() -> None:
    geometries = load_geometries()
    official = {name for name, geometry in geometries.items() if geometry.official}
    assert official == {name for geometry in geometries.values() for name in geometry.like}
    for tiny in geometries.values():
        for name in tiny.like:
            full = geometries[name]
            assert [window > 0 for window in tiny.windows] == [window > 0 for window in full.windows]
            assert (tiny.layers, len(tiny.taps)) == (full.layers, len(full.taps))
            assert (tiny.dflash2 is None) is (full.dflash2 is None)
            assert tiny.vocab_size < 100 < full.vocab_size


def test_published_taps_of_all_official_geometries_but_one_are_the_formulas() -> None:
    for geometry in load_geometries().values():
        if geometry.official and geometry.name != "qwen3.8-27b":
            assert half_even_taps(geometry.target_layers, len(geometry.taps)) == geometry.taps


def test_a_malformed_geometry_is_told(tmp_path: Path) -> None:
    text = (registry.ROOT / "geometries" / "tiny-full.yaml").read_text()
    for old, new, complaint in (
        ("heads: 4\nkv", "heads: 0\nkv", "heads: found 0, expected an integer from 1 on"),
        ("heads: 4\nkv", "heads: true\nkv", "heads: found True"),
        ("windows: [0, 0, 0, 0, 0]", "windows: [0, 0]", r"windows: found \[0, 0\], expected one a layer"),
        ("windows: [0, 0, 0, 0, 0]", "windows: [1, 2, 0, 0, 0]", "windows: found"),
        ("windows: [0, 0, 0, 0, 0]", "windows: 0", "windows: found 0, expected a list"),
        ("heads: 4\nkv", "haeds: 4\nkv", "unknown key 'haeds'"),
    ):
        assert text.count(old) == 1
        with pytest.raises(SpecDataError, match=complaint):
            read_geometry(write(tmp_path, text.replace(old, new)))


def test_a_malformed_dflash2_part_of_a_geometry_is_told(tmp_path: Path) -> None:
    text = (registry.ROOT / "geometries" / "tiny-dflash2.yaml").read_text()
    for old, new, complaint in (
        ("conv_taps: 2", "conv_taps: 0", "dflash2: conv_taps: found 0, expected a positive number"),
        ("conv_taps: 2", "conv_taps: 2.0", "dflash2: conv_taps: found 2.0"),
        ("selector_top_k: 16", "selector_top_k: 16, softcap: 0.0", "dflash2: softcap: found 0.0"),
        ("conv_taps: 2, ", "", "dflash2: key 'conv_taps' is missing"),
        ("conv_taps: 2", "conv_taps: 2, tree: 1", "dflash2: unknown key 'tree'"),
    ):
        assert text.count(old) == 1
        with pytest.raises(SpecDataError, match=complaint):
            read_geometry(write(tmp_path, text.replace(old, new)))


def test_one_system_has_one_word_for_one_term() -> None:
    terms = load_glossary()
    assert {"anchor", "block", "tap", "context K/V", "draft", "verify", "accept", "bonus", "correction"} <= terms.keys()
    words = [(system, word) for term in terms.values() for system, word in term.also.items()]
    assert len(set(words)) == len(words)


def test_a_malformed_glossary_is_told(tmp_path: Path) -> None:
    for text in ("a: 1", "a: {meaning: x}", "a: {meaning: 1, also: {}}", "a: {meaning: x, also: []}"):
        with pytest.raises(SpecDataError, match=r"x.yaml: a"):
            read_glossary(write(tmp_path, text))


def test_no_clause_has_vanished_or_changed_without_the_ledger() -> None:
    assert ledger.differences(ledger.current(), ledger.frozen()) == [], "run python -m dflash_spec.ledger"


def test_the_ledger_sees_what_is_new_changed_and_gone() -> None:
    assert ledger.differences({"A": "1", "B": "2", "C": "3"}, {"A": "1", "B": "9", "D": "4"}) == [
        "B: changed", "C: new", "D: vanished",
    ]  # fmt: skip


def test_only_new_clauses_join_the_ledger_unasked() -> None:
    assert ledger.merged({"B": "2", "A": "1"}, {"A": "1"}, ()) == {"A": "1", "B": "2"}
    for now in ({"A": "2"}, {}):
        with pytest.raises(SpecDataError, match="--rewrite A"):
            ledger.merged(now, {"A": "1"}, ())
        assert ledger.merged(now, {"A": "1"}, ("A",)) == now


def test_a_digest_is_of_the_whole_content_but_not_of_line_breaks() -> None:
    clause = next(iter(registry.load_clauses().values()))
    same = registry.Clause(**{**vars(clause), "statement": clause.statement.replace(" ", "\n  ")})
    assert ledger.digest(same) == ledger.digest(clause)
    for key, value in (("statement", "x"), ("level", "may"), ("source", "x"), ("without", "x"), ("ops", ("x",)),
                       ("profiles", ("zlab",)), ("kind", "law")):  # fmt: skip
        assert ledger.digest(registry.Clause(**{**vars(clause), key: value})) != ledger.digest(clause), key


def test_the_command_writes_the_ledger_and_refuses_a_changed_clause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.json"
    monkeypatch.setattr(ledger, "LEDGER", path)
    monkeypatch.setattr(ledger, "frozen", lambda: json.loads(path.read_text()) if path.exists() else {})
    assert ledger.main(["--check"]) == 1
    assert not path.exists()
    assert ledger.main([]) == 0
    assert json.loads(path.read_text()) == ledger.current()
    assert ledger.main(["--check"]) == 0
    assert ledger.main([]) == 0
    assert "none new" in capsys.readouterr().out
    id_ = next(iter(ledger.current()))
    path.write_text(json.dumps(ledger.current() | {id_: "0"}))
    assert ledger.main([]) == 1
    assert f"{id_}: changed" in capsys.readouterr().err
    assert ledger.main(["--rewrite", id_]) == 0
    assert json.loads(path.read_text()) == ledger.current()
