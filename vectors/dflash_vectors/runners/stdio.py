"""Stdio mode: a program that reads one JSON message a line and answers each with one; tensors travel in files."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from dflash_spec.errors import ImplementationError, UnsupportedError
from dflash_spec.files import canonical_json, unique_members, write_tensors
from dflash_spec.tensors import FLOATS, STORED, Tensor

from dflash_vectors.cases import GoldenCase, shown
from dflash_vectors.runners.protocol import Answer, Description, inputs_only, read_answer, read_description
from dflash_vectors.runners.schemas import DONE, ERROR, NOT_SPOKEN, PROTOCOL, STARTED, validate

STDERR_LINES = 8
LINE_LIMIT = 1 << 20  # bytes of one answer; messages carry paths, never tensors
GRACE = 5.0  # seconds for a program to end by itself, once its input is closed


class StdioRunner:
    """Starts `command` (split as a shell would, run without one), and again after a crash or a timeout."""

    def __init__(self, spec: str, command: str, timeout: float) -> None:
        self.spec = spec
        self._command = command
        self._timeout = timeout
        self._profile = ""
        self._program: _Program | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._hopeless = ""

    def start(self, profile: str) -> Description:
        """Start the program and check its harness: it must copy tensors of every dtype from file to file.

        Raises ImplementationError if it cannot be started or fails that check, UnsupportedError if it does not speak
        the profile.
        """
        self.close()
        self._profile, self._hopeless = profile, ""
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="dflash-check-", ignore_cleanup_errors=True)
        except OSError as error:
            raise ImplementationError(f"no folder for tensors can be made: {error}") from error
        try:
            return self._launch()
        except BaseException:
            self.close()
            raise

    def run(self, case: GoldenCase) -> Answer:
        """The program's answer.

        Raises ImplementationError if it reports an error, crashes, hangs or breaks the protocol.
        """
        if self._hopeless:
            raise ImplementationError(self._hopeless)
        if self._program is None:
            try:
                self._launch()
            except (ImplementationError, UnsupportedError) as error:
                self._hopeless = f"could not be started again: {error}"
                raise ImplementationError(self._hopeless) from error
        message = {"cmd": "run", "id": case.entry.id, "op": case.entry.op.name}
        return self._exchange(message, dict(inputs_only(case)))

    def close(self) -> None:
        """Ask the program to stop, and end it if it does not; an interrupt meanwhile ends it at once."""
        program, self._program = self._program, None
        folder, self._folder = self._folder, None
        try:
            if program is not None:
                program.stop()
        finally:
            if folder is not None:
                folder.cleanup()

    def _launch(self) -> Description:
        self._program = _Program(self._command, self._timeout)
        try:
            answer = self._program.ask({"cmd": "start", "protocol": PROTOCOL, "profile": self._profile})
            if "unsupported" in answer:
                validate(answer, NOT_SPOKEN, "answer to start")
                raise UnsupportedError(str(answer["unsupported"]))
            described = {key: value for key, value in answer.items() if key != "protocol"}
            validate(answer, STARTED, "answer to start")
            description = read_description(described, "answer to start")
            if description.profile != self._profile:
                raise ImplementationError(
                    f"answer to start: profile {description.profile!r}, expected {self._profile!r}"
                )
            self._smoke()
        except BaseException:
            self._abandon()
            raise
        return description

    def _smoke(self) -> None:
        """Raise ImplementationError unless the program copies in.<dtype> to out.<dtype>, bit for bit."""
        tensors = smoke_tensors()
        try:
            answer = self._exchange({"cmd": "smoke"}, {f"in.{name}": tensor for name, tensor in tensors.items()})
        except ImplementationError as error:
            raise ImplementationError(f"smoke check of the harness: {error}") from error
        for name, tensor in tensors.items():
            got = answer.tensors.get(f"out.{name}")
            if got is None:
                raise ImplementationError(f"smoke check of the harness: out.{name} is missing")
            if (got.dtype, got.shape, got.encode()) != (tensor.dtype, tensor.shape, tensor.encode()):
                raise ImplementationError(
                    f"smoke check of the harness: out.{name} is {got.dtype} {list(got.shape)} {got.values.tolist()}, "
                    f"expected a copy of in.{name}: {tensor.dtype} {list(tensor.shape)} {tensor.values.tolist()}"
                )

    def _exchange(self, message: dict[str, Any], tensors: dict[str, Tensor]) -> Answer:
        assert self._program is not None
        assert self._folder is not None
        folder = Path(self._folder.name).resolve()
        sent, got = folder / "inputs.safetensors", folder / "outputs.safetensors"
        seq = self._program.next_seq()
        try:
            _clear(sent, got)
            write_tensors(sent, tensors, {key: value for key, value in message.items() if key != "cmd"})
            answer = self._program.ask({**message, "seq": seq, "inputs": str(sent), "outputs": str(got)})
            validate(answer, ERROR if "error" in answer else DONE, f"answer to {message['cmd']}")
            if answer["seq"] != seq:
                raise ImplementationError(f"answer to {message['cmd']}: seq {answer['seq']}, expected {seq}")
        except OSError as error:
            self._abandon()
            raise ImplementationError(f"{folder}: cannot be written to: {error}") from error
        except BaseException:
            self._abandon()
            raise
        if "error" in answer:
            raise ImplementationError(f"reported: {answer['error']}")
        return read_answer(got, folder)

    def _abandon(self) -> None:
        """End a program that can no longer be trusted to be in step."""
        program, self._program = self._program, None
        if program is not None:
            program.kill()


def _clear(*paths: Path) -> None:
    """Remove what a program may have left in the way, whatever it is. Raises OSError."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def smoke_tensors() -> dict[str, Tensor]:
    """One tensor per dtype, plus a scalar and an empty one: what a reader or a writer of tensor files gets wrong."""
    tensors = {"scalar": Tensor.of("F32", np.float32(0.1)), "empty": Tensor.of("BF16", np.zeros((0, 3), np.float32))}
    for dtype, held in STORED.items():
        if dtype in FLOATS:
            values = np.array([[1.0, -0.0, 1.5], [np.inf, 2.0**-14, -3.0]], np.float32)
        else:
            top = np.iinfo(held).max
            values = np.array([[0, 1, 2], [3, top - 1, top]], held)
        tensors[dtype.lower()] = Tensor.of(dtype, values)
    return tensors


class _Program:
    """One running process. Its stderr is kept for the message of a failure, its last lines only."""

    def __init__(self, command: str, timeout: float) -> None:
        self._timeout = timeout
        self._seq = 0
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        try:
            self._process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ImplementationError(f"{command!r} cannot be started: {error}") from error
        self._readers = [threading.Thread(target=reader, daemon=True) for reader in (self._read_out, self._read_err)]
        for thread in self._readers:
            thread.start()

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that answers `message`. Raises ImplementationError if none comes, or not in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(canonical_json(message).encode() + b"\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self._timeout)
        except queue.Empty:
            raise ImplementationError(
                f"no answer to {message['cmd']} within {self._timeout:g} s{self._tail()}"
            ) from None
        except OSError:
            line = b""
        if not line:
            raise ImplementationError(f"{self._death()} at {message['cmd']}{self._tail()}")
        try:
            answer = json.loads(line, object_pairs_hook=unique_members)
        except (ValueError, RecursionError):
            said = line[:80].decode("utf-8", "replace").rstrip()
            raise ImplementationError(
                f"answer to {message['cmd']}: {said!r} is not JSON, or repeats a key "
                "(stdout is for answers, stderr for logs)"
            ) from None
        if not isinstance(answer, dict):
            raise ImplementationError(f"answer to {message['cmd']}: found {shown(answer)}, expected a JSON object")
        return answer

    def stop(self) -> None:
        """Say stop and wait; kill what is left of it after the grace time, or when an interrupt cuts that short."""
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b'{"cmd":"stop"}\n')
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process and everything that it started.

        Each reader closes its pipe at its end. It is not waited for without limit, because a process that left the
        group may hold the pipe open.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for thread in self._readers:
            thread.join(GRACE)

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while line := stream.readline(LINE_LIMIT):
                self._lines.put(line)
        self._lines.put(b"")

    def _read_err(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while line := stream.readline(LINE_LIMIT):
                self._stderr.append(line.decode("utf-8", "replace").rstrip())

    def _death(self) -> str:
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "closed its stdout"
        self._readers[1].join(GRACE)
        if code >= 0:
            return f"ended with exit status {code}"
        known = -code in set(signal.Signals)  # signals for real-time use have no name
        return f"was ended by signal {signal.Signals(-code).name if known else -code}"

    def _tail(self) -> str:
        return "; its stderr ends: " + " | ".join(self._stderr) if self._stderr else "; its stderr is empty"
