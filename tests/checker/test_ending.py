"""How a check ends: by a signal, on a full disk, on a stream that cannot take what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dflash_vectors.commands.check_vectors import main

ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, str(ROOT / "tools" / "check_vectors.py")]

STUBBORN = """\
import json, os, sys, time
from pathlib import Path
from dflash_spec.files import read_tensors, write_tensors
HERE = Path(__file__).parent
for line in sys.stdin:
    m = json.loads(line)
    if m["cmd"] == "stop":
        (HERE / "ending").write_text(str(os.getpid()))
        time.sleep(600)
    if m["cmd"] == "start":
        print(json.dumps(dict(protocol=1, name="stubborn", version="1", profile=m["profile"])), flush=True)
    elif m["cmd"] == "smoke":
        tensors = read_tensors(Path(m["inputs"]))
        write_tensors(Path(m["outputs"]), {"out." + name[3:]: tensor for name, tensor in tensors.items()})
        print(json.dumps(dict(seq=m["seq"], ok=True)), flush=True)
    else:
        print(json.dumps(dict(seq=m["seq"], error="no kernel")), flush=True)
"""


def wait_for(path: Path) -> str:
    """The text of a file, once there is some."""
    for _ in range(600):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} does not come")


def gone(pid: int) -> bool:
    """Whether a process ends within five seconds."""
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 3])
def test_a_signal_while_a_program_is_ending_ends_it_and_keeps_the_verdicts(
    vectors: Any, tmp_path: Path, number: signal.Signals, times: int
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup, and what is started inherits that")
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    spec = f"stdio:{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'stubborn.py'))}"
    command = [*TOOL, "--vectors", str(vectors.folder), "--profile", "zlab", "--implementation", spec]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        pid = int(wait_for(tmp_path / "ending"))
        for _ in range(times):
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert gone(pid)
    if times == 1:
        assert out.splitlines()[-1].startswith("INTERRUPTED  0 passed, 4 failed")


@pytest.mark.parametrize("delay", [0.06, 0.1, 0.2, 0.3])
def test_an_interrupt_at_the_start_is_silent(vectors: Any, tmp_path: Path, delay: float) -> None:
    # the interpreter's own start is not ours to guard, so the delay counts from the first line of the tool
    (tmp_path / "late.py").write_text(
        "import os, signal, sys, threading\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from dflash_vectors.commands.check_vectors import main\n"
        f"threading.Timer({delay}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "slow_port.py").write_text("import time\ntime.sleep(60)\n")
    words = ["--vectors", str(vectors.folder), "--implementation", "python:slow_port:create"]
    command = [sys.executable, str(tmp_path / "late.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_signal_that_was_ignored_stays_ignored(vectors: Any, tmp_path: Path) -> None:
    (tmp_path / "hung_up.py").write_text(
        "import os, signal\n"
        "class P:\n"
        "    def describe(self): return {'name': 'x', 'version': '1', 'profile': 'zlab'}\n"
        "    def run(self, op, inputs):\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "        raise ValueError\n"
        "def create(profile): return P()\n"
    )
    words = ["--vectors", str(vectors.folder), "--profile", "zlab", "--implementation", "python:hung_up:create"]
    command = ["nohup", *TOOL, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "0 passed, 4 failed" in done.stdout


@pytest.mark.parametrize(
    "words", [["--implementation", "files:{folder}"], ["--json", "--implementation", "files:{folder}"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_stdout_is_one_line_and_exit_code_2(
    vectors: Any, tmp_path: Path, words: list[str], unbuffered: str
) -> None:
    command = [*TOOL, "--vectors", str(vectors.folder), *(word.format(folder=tmp_path) for word in words)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "dflash-check-vectors: stdout: No space left on device: the verdicts are not printed\n"


def test_a_stdout_that_is_closed_leaves_the_exit_code(vectors: Any, port: Any, tmp_path: Path) -> None:
    words = [*TOOL, "--vectors", str(vectors.folder), "--implementation", f"files:{tmp_path}"]
    command = ["sh", "-c", f"{shlex.join(words)} >&- 2>&-"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 1


def test_a_file_for_verdicts_on_a_full_disk_is_one_line_and_exit_code_2_with_the_table(check: Any, port: Any) -> None:
    code, out, err = check("--implementation", port(), "--out", "/dev/full")
    assert code == 2
    assert out.splitlines()[-1].startswith("PASSED  6 passed")
    assert err == "dflash-check-vectors: /dev/full: No space left on device: the verdicts from here on are not in it\n"


def test_a_disk_that_fills_up_leaves_whole_lines(
    check: Any, port: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, room, true = tmp_path / "run.jsonl", [500], os.write

    def write(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = min(room[0], len(data))
        room[0] -= taken
        return true(file, data[:taken])

    monkeypatch.setattr("dflash_vectors.commands.checking.os.write", write)
    code, _, err = check("--implementation", port(), "--out", str(out))
    assert code == 2
    assert err.count("\n") == 1
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert kinds[:2] == ["implementation", "result"]
    assert out.read_text().endswith("}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--implementation", "python:no_such_port:create"],
        ["--implementation", "files:/nowhere", "--op", "no.such"],
        ["--implementation", "files:/nowhere", "--timeout", "nan"],
    ],
)
def test_a_run_that_cannot_start_leaves_the_verdicts_of_an_earlier_one(
    vectors: Any, tmp_path: Path, words: list[str]
) -> None:
    out = tmp_path / "run.jsonl"
    out.write_text('{"kind":"summary"}\n')
    with contextlib.suppress(SystemExit):
        assert main(["--vectors", str(vectors.folder), "--out", str(out), *words]) == 2
    assert out.read_text() == '{"kind":"summary"}\n'


def test_a_run_that_starts_replaces_the_verdicts_of_an_earlier_one(check: Any, port: Any, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    out.write_text("x" * 100_000)
    check("--implementation", port(), "--out", str(out))
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 9


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "0", "1e30", "-inf", "soon"])
def test_a_timeout_that_cannot_be_waited_for_is_wrong_usage(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--implementation", "files:/nowhere", f"--timeout={value}"])
    assert ended.value.code == 2
    assert f"found {value!r}, expected seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["--implementation", "files:{folder}"]])
@pytest.mark.parametrize(
    "language", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
def test_a_stream_of_ascii_gets_stand_ins(
    vectors: Any, tmp_path: Path, words: list[str], language: dict[str, str]
) -> None:
    (tmp_path / "implementation.json").write_text(
        '{"name": "Ünïcode", "version": "1", "profile": "zlab", "ops": ["law.greedy"]}', encoding="utf-8"
    )
    command = [*TOOL, "--vectors", str(vectors.folder), *(word.format(folder=tmp_path) for word in words)]
    done = subprocess.run(command, capture_output=True, timeout=60, env=os.environ | language, check=False)
    assert done.stderr == b""
    assert done.returncode == (0 if words == ["--help"] else 1)
    shown = done.stdout.decode("ascii")
    assert "exit code:" in shown or ("-----" in shown and "\\xdcn\\xefcode" in shown)
