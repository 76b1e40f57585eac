"""Building the kernels where something is missing or broken."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from dflash_accelerated.native import available, build, calls
from dflash_spec.errors import UnsupportedError

BUILDS = (
    "import sys; from dflash_accelerated.native import build; build.SOURCES = build.Path(sys.argv[1]); build.build()"
)
MEETS = """
case "$*" in *--version*) exec {compiler} "$@";; esac
touch {folder}/here.$$
while [ $(ls {folder} | grep -c here) -lt 2 ]; do sleep 0.01; done
exec {compiler} "$@"
"""
"""A compiler that begins when another one is there."""


HERE = available()
"""Asked before the cache is taken away."""


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
def small(compiler: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The compiler, and sources that it compiles at once: one kernel, which gives 7."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "kernels.c").write_text("int rms_norm(void) { return 7; }\n", "utf-8")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "sources")
    return compiler


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "wrong-cc"
        path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        path.chmod(0o755)
        return str(path)

    return write


def test_wherever_there_is_a_compiler_the_kernels_are_there(compiler: list[str]) -> None:
    """Every test of a kernel is skipped where they are not: this one fails."""
    assert HERE


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
        ("exit 1", "wrong-cc --version ended with 1, expected 0; it said nothing"),
    ],
    ids=["no-version", "no-build", "no-library", "no-word"],
)
def test_a_broken_compiler_is_told_with_its_own_words(
    text: str, said: str, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", script(text))
    assert not available()
    with pytest.raises(UnsupportedError) as raised:
        calls.kernels()
    assert said in str(raised.value)


def test_a_broken_compiler_is_asked_to_compile_once(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", script(f'test "$1" = --version || {{ echo >> {tmp_path}/asked; exit 1; }}'))
    with pytest.raises(UnsupportedError, match="it said nothing"):
        build.build()
    assert (tmp_path / "asked").read_text("utf-8") == "\n"


def test_a_compiler_that_hangs_ends_with_all_that_it_started(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SECONDS", 2)
    monkeypatch.setenv("CC", script(f"sleep 1000 & echo $! > {tmp_path}/child; wait"))
    with pytest.raises(UnsupportedError, match="timed out after 2 seconds, expected a C compiler that works"):
        build.build()
    child = Path("/proc", (tmp_path / "child").read_text("utf-8").strip(), "stat")
    for _ in range(200):
        if not child.exists() or child.read_text("utf-8").rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("what the compiler started goes on")


def test_the_command_has_help_and_refuses_arguments() -> None:
    command = [sys.executable, "-m", "dflash_accelerated.native"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "exit code: 0 where they can be used" in told
    done = subprocess.run([*command, "now"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unrecognized arguments: now" in done.stderr


def test_a_built_library_is_kept_and_used_again(small: list[str], tmp_path: Path) -> None:
    build.build()
    (library,) = (tmp_path / "cache" / "dflash-oracle").iterdir()
    written = library.stat().st_mtime_ns
    build.build()
    assert list(library.parent.iterdir()) == [library]
    assert library.stat().st_mtime_ns == written


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_kept_library_is_read_by_whom_the_umask_lets(mask: int, mode: int, small: list[str], kept: Path) -> None:
    before = os.umask(mask)
    try:
        assert build.build().rms_norm() == 7
        assert os.umask(mask) == mask, "as it was"
    finally:
        os.umask(before)
    assert kept.stat().st_mode & 0o777 == mode


def test_what_killed_builds_left_is_removed_by_the_next(small: list[str], kept: Path) -> None:
    left = {name: kept.parent / name for name in ("tmpold.so", "tmpnew.so", "kernels-older.so", "tmpold.txt")}
    for name, path in left.items():
        path.touch()
        if name != "tmpnew.so":
            os.utime(path, (time.time() - 3700,) * 2)
    build.build()
    assert {path.name for path in kept.parent.iterdir()} == {*left, kept.name} - {"tmpold.so"}


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
    blocked: str, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert build.build().rms_norm() == 7
    assert not list(tmp_path.glob("**/*.so"))


def test_a_cache_folder_that_is_full_is_done_without(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        if "cache" in path.parts:
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    assert build.build().rms_norm() == 7
    assert not list((tmp_path / "cache").glob("**/*.so"))


@pytest.fixture
def kept(small: list[str], tmp_path: Path) -> Path:
    """Where the library lies once it is built."""
    folder = tmp_path / "cache" / "dflash-oracle"
    folder.mkdir(parents=True)
    return folder / f"kernels-{build._fingerprint(small)}.so"


def write_library(compiler: list[str], source: str, library: Path) -> bytes:
    subprocess.run([*compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source.encode(), check=True)
    return library.read_bytes()


def without_kernels(compiler: list[str], library: Path) -> None:
    write_library(compiler, "int other;", library)


def older(compiler: list[str], library: Path) -> None:
    """Written whole, under another name: it has the kernel, which does something else."""
    other = library.with_name("kernels-older.so")
    content = write_library(compiler, "int rms_norm(void) { return 6; }", other)
    library.write_bytes(content + build._seal(other, content))
    other.unlink()


def changed(compiler: list[str], library: Path) -> None:
    """One byte is another, where a loader does not look."""
    build._compile(compiler, library)
    content = bytearray(library.read_bytes())
    content[-build.SEAL - 1] ^= 1
    library.write_bytes(content)


def half(compiler: list[str], library: Path) -> None:
    """As a crash or a full disk leaves it."""
    build._compile(compiler, library)
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2])


DAMAGED: dict[str, Callable[[list[str], Path], object]] = {
    "junk": lambda compiler, library: library.write_bytes(b"half a lib"),
    "empty": lambda compiler, library: library.touch(),
    "half": half,
    "changed": changed,
    "without-kernels": without_kernels,
    "older": older,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_library_is_compiled_anew(damage: str, small: list[str], kept: Path) -> None:
    DAMAGED[damage](small, kept)
    before = kept.read_bytes()
    assert build.build().rms_norm() == 7
    assert kept.read_bytes() != before, "each process would compile for itself"
    assert list(kept.parent.iterdir()) == [kept]


def test_a_compiler_that_leaves_the_kernels_out_is_told(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "sources" / "kernels.c").write_text("int other;\n", "utf-8")
    with pytest.raises(UnsupportedError, match="has no function rms_norm, expected a library that can be loaded"):
        build.build()


def test_processes_that_build_at_once_do_not_disturb_each_other(
    small: list[str], tmp_path: Path, script: Callable[[str], str]
) -> None:
    compiler = script(MEETS.format(folder=tmp_path, compiler=small[0]))
    command = [sys.executable, "-c", BUILDS, str(build.SOURCES)]
    started = [subprocess.Popen(command, env=os.environ | {"CC": compiler}, stderr=subprocess.PIPE) for _ in range(2)]
    for process in started:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert len(list((tmp_path / "cache" / "dflash-oracle").iterdir())) == 1


@pytest.mark.parametrize(
    "command", ["clang -march=x86-64", "clang -march=x86-64-v3", "clang -march=sapphirerapids", "aarch64-linux-gnu-gcc"]
)
def test_other_compilers_and_machines_read_the_kernels_without_a_warning(command: str) -> None:
    """Read and not compiled, which takes ten seconds and more each."""
    compiler, *machine = shlex.split(command)
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} on the path")
    if machine and platform.machine() != "x86_64":
        pytest.skip("another machine's flags")
    flags = [flag for flag in build.FLAGS if flag != build.TUNED]
    strict = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-command-line-argument"]
    read = [compiler, *machine, *flags, *strict, str(build.SOURCES / "kernels.c")]
    done = subprocess.run(read, capture_output=True, text=True, timeout=build.SECONDS)
    assert done.returncode == 0, done.stderr
