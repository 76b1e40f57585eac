"""Each floor rests only on the floors below it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "vectors" / "dflash_vectors"
ALLOWED = {
    "spec/dflash_spec": {"dflash_spec", "numpy", "yaml"},
    "reference/dflash_reference": {"dflash_reference", "dflash_spec", "numpy"},
    "accelerated/dflash_accelerated": {"dflash_accelerated", "dflash_spec", "numpy", "torch", "triton"},
}
CHECKER = (
    "cases", "checker", "differences", "plugin", "report", "style", "table", "verdict", "runners",
    "commands.check_vectors", "commands.checking", "commands.output", "commands.progress", "commands.check_law",
    "commands.judging_laws",
    "law.asking", "law.blame", "law.closed", "law.controls", "law.engines", "law.families", "law.filtering",
    "law.judging", "law.pieces", "law.report", "law.rule", "law.samplers", "law.seeds", "law.statistics",
    "law.uniforms", "law.verdicts", "law.verify", "trace",
)  # fmt: skip
"""What judges an implementation. It must work without the reference that wrote the vectors."""
LIBRARIES = {"dflash_vectors.law.statistics": {"scipy"}}
"""What single modules of it load besides, when they need it."""
TEXTS = {"accelerated/dflash_accelerated/commands/texts.py": {"tokenizers"}}
"""What single files of the floors load besides, when they need it."""
DISPATCH = ROOT / "accelerated" / "dflash_accelerated" / "ops" / "dispatch.py"
"""The one module that loads another by a name in a text: the kernels beside an op, which need what may be missing."""
DOOR = "dflash_vectors.lookalikes"
"""The one module through which the checker asks the reference, for a hint, once a vector has failed."""


def imports(path):
    """(module, whether at module level) of every import of a file; relative ones fail."""
    tree = ast.parse(path.read_text("utf-8"))
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides the floor that it leads to"
            yield from ((f"{node.module}.{alias.name}", id(node) in top) for alias in node.names)


def files(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no files in {folder}"
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_floor_imports_only_what_lies_below_it(folder):
    for path in files(folder):
        for module, at_top in imports(path):
            root = module.split(".")[0]
            lazy = root in TEXTS.get(path.relative_to(ROOT).as_posix(), ()) and not at_top
            assert root in ALLOWED[folder] or root in sys.stdlib_module_names or lazy, f"{path} imports {module}"


def test_no_package_is_loaded_by_a_name_in_a_text():
    for folder in ALLOWED:
        for path in files(folder):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                named = isinstance(node, ast.Attribute | ast.Name) and (
                    getattr(node, "attr", getattr(node, "id", "")) in ("import_module", "__import__")
                )
                assert not named or path == DISPATCH, f"{path} loads a module by name, which hides what it rests on"


def test_what_dispatch_loads_lies_beside_the_op_that_names_it():
    tree = ast.parse(DISPATCH.read_text("utf-8"))
    loads = [node for node in ast.walk(tree) if "import_module" in (getattr(node, "id", ""), getattr(node, "attr", ""))]
    assert len(loads) == 1
    assert "import_module(f'{folder}.{kernel}')" in ast.unparse(tree)
    assert "folder, name = (plain.__module__.rpartition('.')[0], plain.__name__)" in ast.unparse(tree)


def functions(path):
    return {node.name: node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def callable_from_python(path):
    """All but those in Triton's language, which only kernels call."""
    own = functions(path)
    return {name: node for name, node in own.items() if "triton.jit" not in map(ast.unparse, node.decorator_list)}


def kernels_of(function):
    """The files that `@dispatched` names, which must be written out."""
    calls = [node for node in function.decorator_list if ast.unparse(node).startswith("dispatched(")]
    return {argument.value for call in calls for argument in call.args}


@pytest.mark.parametrize("path", sorted(DISPATCH.parent.glob("*/torch.py")), ids=lambda path: path.parent.name)
def test_an_op_names_the_kernels_that_it_has(path):
    own = functions(path)
    for kernel in ("native", "triton"):
        beside = path.with_name(f"{kernel}.py")
        made = callable_from_python(beside) if beside.exists() else {}
        named = {name for name, function in own.items() if kernel in kernels_of(function)}
        assert named == {name for name in own if name in made and not name.startswith("_")}, beside
        for name in named:
            expected, found = own[name].args, made[name].args
            assert len(found.args) == len(expected.args), f"{beside}: {name}"
            assert found.args[-1].arg == expected.args[-1].arg == "numerics", f"{beside}: {name}"


def test_only_ops_in_pytorch_are_dispatched_and_only_to_kernels():
    named = set()
    for path in files("accelerated/dflash_accelerated"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and kernels_of(node):
                named |= kernels_of(node)
                assert (path.name, path.parents[1]) == ("torch.py", DISPATCH.parent), path
    assert named == {"native", "triton"}


def is_checker(module):
    name = module.removeprefix("dflash_vectors.")
    return any(name == part or name.startswith(f"{part}.") for part in CHECKER)


def test_the_checker_imports_the_spec_and_itself():
    judged = [path for path in files("vectors/dflash_vectors") if is_checker(dotted(path))]
    assert len(judged) > len(CHECKER)
    for path in judged:
        for module, at_top in imports(path):
            root = module.split(".")[0]
            own = root == "dflash_vectors" and (is_checker(module) or (module.startswith(DOOR) and not at_top))
            outside = root in {"dflash_spec", "numpy", "yaml", "pytest"} or root in sys.stdlib_module_names
            lazy = root in LIBRARIES.get(dotted(path), ()) and not at_top
            assert own or outside or lazy, f"{path} imports {module}"


def dotted(path):
    return ".".join(path.relative_to(VECTORS.parent).with_suffix("").parts).removesuffix(".__init__")


def test_the_checker_loads_neither_reference_nor_torch():
    modules = [dotted(path) for path in files("vectors/dflash_vectors") if is_checker(dotted(path))]
    code = (
        f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'dflash_reference', 'dflash_accelerated', 'torch'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


TOOL = re.compile(
    r'#!/usr/bin/env python3\n"""[^"]+; `--help` says how\."""\n\nimport sys\n\n'
    r"from dflash_\w+(\.\w+)* import main\n\nsys\.exit\(main\(\)\)\n"
)


def test_tools_differ_in_the_command_that_they_call_alone():
    for path in files("tools"):
        assert TOOL.fullmatch(path.read_text("utf-8")), f"{path}: expected the form of the others"
        assert path.stat().st_mode & 0o111, f"{path} cannot be run by its name"


def test_tools_are_thin():
    for path in files("tools"):
        functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
        assert not functions, f"{path}: logic belongs to dflash_vectors.commands, where tests reach it"
