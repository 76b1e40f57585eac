"""Building the kernels where something is missing or broken."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from dflash_accelerated.native import available, build, calls
from dflash_spec.errors import UnsupportedError

COMPILES = "from dflash_accelerated.native import kernels; kernels()"


@pytest.fixture(autouse=True)
def not_yet_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache folder, and a process that has loaded nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    fresh = cache(calls.kernels.__wrapped__)
    monkeypatch.setattr(calls, "kernels", fresh)


@pytest.fixture
def compiler() -> list[str]:
    try:
        return build.find_compiler()
    except UnsupportedError:
        pytest.skip("no C compiler")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "wrong-cc"
        path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        path.chmod(0o755)
        return str(path)

    return write


def test_without_a_compiler_the_kernels_are_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not available()
    with pytest.raises(UnsupportedError, match=r"none of cc, gcc, clang on the path, expected a C compiler"):
        calls.kernels()


def test_a_compiler_that_is_asked_for_by_a_wrong_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-cc -m64")
    with pytest.raises(UnsupportedError, match=r"no no-such-cc \(from \$CC\) on the path"):
        calls.kernels()


def test_a_compiler_that_is_no_command_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc 'of mine")
    assert not available()
    with pytest.raises(UnsupportedError, match=r"\$CC is \"gcc 'of mine\": No closing quotation, expected a command"):
        calls.kernels()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'cannot do that' >&2; exit 3", "ended with 3, expected 0; it said:\ncannot do that"),
        ('test "$1" = --version && exit 0; echo "kernels.c:1: no" >&2; exit 1', "it said:\nkernels.c:1: no"),
        ("exit 0", "expected a library that can be loaded"),
    ],
    ids=["no-version", "no-build", "no-library"],
)
def test_a_broken_compiler_is_told_with_its_own_words(
    text: str, said: str, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", script(text))
    assert not available()
    with pytest.raises(UnsupportedError) as raised:
        calls.kernels()
    assert said in str(raised.value)


def test_a_built_library_is_kept_and_used_again(compiler: list[str], tmp_path: Path) -> None:
    build.build()
    (library,) = (tmp_path / "cache" / "dflash-oracle").iterdir()
    written = library.stat().st_mtime_ns
    build.build()
    assert list(library.parent.iterdir()) == [library]
    assert library.stat().st_mtime_ns == written


def test_another_cpu_or_another_compiler_has_another_library(
    compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = build._fingerprint(compiler)
    assert build._fingerprint(compiler) == here
    assert build._fingerprint([*compiler, "-g0"]) != here
    monkeypatch.setattr(build, "_cpu", lambda: "another")
    assert build._fingerprint(compiler) != here


@pytest.mark.parametrize("blocked", ["a-file", "read-only"])
def test_a_cache_folder_that_cannot_be_written_is_done_without(
    blocked: str, compiler: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To root nothing is read-only, so here the last step of a write is what fails."""

    def refuse(source: str, target: Path) -> None:
        if "cache" in Path(target).parts:
            raise PermissionError(13, "Permission denied", str(target))
        replace(source, target)

    replace = os.replace
    if blocked == "a-file":
        (tmp_path / "cache").write_text("", "utf-8")
    else:
        monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert available()
    assert not list(tmp_path.glob("**/*.so"))


def test_a_damaged_library_is_not_the_end(compiler: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "dflash-oracle"
    folder.mkdir(parents=True)
    library = folder / f"kernels-{build._fingerprint(compiler)}.so"
    library.write_bytes(b"half a lib")
    assert available()
    assert library.read_bytes().startswith(b"\x7fELF"), "each process would compile for itself"
    assert list(folder.iterdir()) == [library]


def test_processes_that_build_at_once_do_not_disturb_each_other(compiler: list[str], tmp_path: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", COMPILES], stderr=subprocess.PIPE) for _ in range(2)]
    for process in started:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert len(list((tmp_path / "cache" / "dflash-oracle").iterdir())) == 1
