"""pytest plug-in: `pytest -m conformance --implementation HOW` makes one test of every vector, in any repository.

Installed, it does nothing until such an option is on the command line, in PYTEST_ADDOPTS or in `addopts`: it does not
even register the options, because other plug-ins have a `--profile` of their own, and it imports nothing of this
package, because that would slow every start of pytest down.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

OURS = {"--implementation": re.compile(r"^(files|stdio|python):"), "--profile": re.compile(r"^[^-]")}
MARKER = "conformance: checks an implementation against the vectors"


def _given(config: pytest.Config) -> dict[str, list[str]]:
    """The values that our options have in this invocation, wherever they were written."""
    words = [*map(str, config.getini("addopts")), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    words += [str(word) for word in config.invocation_params.args]
    found: dict[str, list[str]] = {option: [] for option in OURS}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        value = value if equals else following
        if option in OURS and OURS[option].match(value):
            found[option].append(value)
    return found


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    given = _given(config)
    if not given["--implementation"]:
        return
    group = parser.getgroup("dflash", "DFlash vectors")
    group.addoption("--implementation", action="append", default=[], metavar="HOW", help="what to check; may repeat")
    if given["--profile"]:
        from dflash_spec.registry import ALL_PROFILES

        group.addoption("--profile", choices=ALL_PROFILES, help="check vectors of this profile only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    if config.getoption("implementation", None) and _given(config)["--implementation"]:
        config.pluginmanager.register(_Vectors(config), "dflash-vectors")


class _Vectors:
    """Collects the vectors of one session and lets go of the implementations at its end."""

    def __init__(self, config: pytest.Config) -> None:
        from dflash_spec.errors import DFlashError

        from dflash_vectors.cases import Selection, default_folder, read_index

        self._bench = Bench()
        given = _given(config)
        self._specs = list(dict.fromkeys(given["--implementation"]))
        chosen = Selection(given["--profile"][-1] if given["--profile"] else None)
        try:
            self._entries = [entry for entry in read_index(default_folder()) if chosen.takes(entry)]
        except DFlashError as error:
            raise pytest.UsageError(str(error)) from error

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        for spec in self._specs:
            self._bench.expect_usable(spec, dict.fromkeys(entry.profile.name for entry in self._entries))
            parent = _Implementation.from_parent(session, name=spec, bench=self._bench, entries=self._entries)
            items.extend(parent.collect())

    def pytest_sessionfinish(self) -> None:
        self._bench.close()


class Bench:
    """Implementations by name and profile, started when the first vector needs one."""

    def __init__(self, timeout: float = 60.0) -> None:
        self._timeout = timeout
        self._started: dict[tuple[str, str], Any] = {}
        self._known: Any = None

    def judge(self, spec: str, entry: Any) -> tuple[Any, Any]:
        """The column and the result of one vector.

        Raises UnsupportedError if the profile is not spoken, ImplementationError if `spec` cannot be used.
        """
        from dflash_vectors.checker import explained, judge
        from dflash_vectors.differences import read_differences
        from dflash_vectors.verdict import FAILED, Column

        runner, description = self._start(spec, entry.profile.name)
        result = judge(runner, description, entry)
        if result.status == FAILED:
            self._known = read_differences() if self._known is None else self._known
            result = explained(result, description, self._known)
        return Column(spec, description), result

    def expect_usable(self, spec: str, profiles: Iterable[str]) -> None:
        """Raise UsageError if `spec` cannot be started in any of the profiles, so that this is said once."""
        from dflash_spec.errors import DFlashError, ImplementationError

        from dflash_vectors.style import printable

        reasons = []
        for profile in profiles:
            try:
                self._start(spec, profile)
                return
            except DFlashError as error:
                reasons.append(error)
        for reason in reasons:
            if isinstance(reason, ImplementationError):
                raise pytest.UsageError(printable(f"{spec} could not be run: {reason}"))

    def _start(self, spec: str, profile: str) -> tuple[Any, Any]:
        from dflash_spec.errors import DFlashError

        from dflash_vectors.runners import open_runner

        key = (spec, profile)
        if key not in self._started:
            try:
                runner = open_runner(spec, self._timeout)
                self._started[key] = (runner, runner.start(profile))
            except DFlashError as error:
                self._started[key] = error
        if isinstance(self._started[key], Exception):
            raise self._started[key]
        return self._started[key]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop every program."""
        for started in self._started.values():
            if not isinstance(started, Exception):
                started[0].close()
        self._started.clear()


class VectorFailure(Exception):
    """A vector failed; the message is the report, `summary` a line of it."""

    def __init__(self, report: str, summary: str = "") -> None:
        super().__init__(report)
        self.summary = summary or report


class _Told:
    """The report where pytest prints a failure, and its one line in pytest's short summary."""

    def __init__(self, failure: VectorFailure) -> None:
        self._report = str(failure)
        self.reprcrash = SimpleNamespace(path="", lineno=0, message=failure.summary)

    def toterminal(self, tw: Any) -> None:
        tw.line(self._report)

    def __str__(self) -> str:
        return self._report


class _Implementation(pytest.Collector):
    def __init__(self, bench: Bench, entries: list[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bench, self.entries = bench, entries

    def collect(self) -> Iterator[pytest.Item]:
        for entry in self.entries:
            yield _Vector.from_parent(self, name=entry.id, entry=entry)


class _Vector(pytest.Item):
    def __init__(self, entry: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.entry = entry
        self.add_marker("conformance")

    def runtest(self) -> None:
        assert isinstance(self.parent, _Implementation)
        expect_passed(self.parent.bench, self.parent.name, self.entry)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return _Told(excinfo.value) if isinstance(excinfo.value, VectorFailure) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''} {self.name}"


def expect_passed(bench: Bench, spec: str, entry: Any) -> None:
    """Judge one vector as a test: passes, skips with the reason where it is not supported, or raises VectorFailure."""
    from dflash_spec.errors import ImplementationError, UnsupportedError

    from dflash_vectors.cases import default_folder
    from dflash_vectors.report import clause_lines, failure, one_line
    from dflash_vectors.style import Style, printable
    from dflash_vectors.verdict import DAMAGED, FAILED, UNSUPPORTED

    try:
        column, result = bench.judge(spec, entry)
    except UnsupportedError as error:
        pytest.skip(f"not supported: {printable(error)}")
    except ImplementationError as error:
        raise VectorFailure(printable(f"{spec} could not be run: {error}")) from error
    if result.status == UNSUPPORTED:
        pytest.skip(f"not supported: {result.reason}")
    if result.status == DAMAGED:
        raise VectorFailure(f"damaged vector: {result.reason}")
    if result.status == FAILED:
        if result.difference is not None:
            pytest.xfail(f"{result.difference.verdict} difference: {result.difference.why}")
        told = clause_lines(result.clause, Style()), failure(column, result, str(default_folder()), Style(), alone=True)
        raise VectorFailure("\n".join((*told[0], told[1])), f"breaks {result.clause}: {one_line(result)}")
