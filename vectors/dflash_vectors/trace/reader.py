"""Reading a trace: what lies in the folder is checked file by file, and only one round is held at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash_spec.errors import ConfigError, SpecDataError, TensorFileError, TraceError
from dflash_spec.files import read_metadata, read_tensors
from dflash_spec.registry import ALL_PROFILES
from dflash_spec.tensors import FLOATS

from dflash_vectors.trace.fields import LARGEST, Fields, Numbered, consecutive
from dflash_vectors.trace.format import (
    DRAWS,
    END,
    FORMAT,
    LISTS,
    PREFILL,
    REASONS,
    ROUND_FILE,
    SAMPLING,
    START,
    VERIFIED,
    VERSION,
    Configuration,
    End,
    Prefill,
    Round,
)

MEMBERS = (
    "format", "version", "run", "name", "implementation_version", "profile", "drafts", "max_new", "public", "capacity",
    "temperature", "seed", "chunks", "draws", "sampling", "dtypes",
)  # fmt: skip
ROLES = ("ACT", "CTX_K", "CTX_V", "LOGIT")


class Trace:
    """A trace in a folder. Opening it reads the configuration and checks which rounds there are."""

    def __init__(self, folder: Path, configuration: Configuration, names: tuple[str, ...]) -> None:
        self.folder = folder
        self.configuration = configuration
        self._names = names

    @staticmethod
    def open(folder: Path) -> Trace:
        """Open `folder`. Raises TraceError where it holds no trace, a damaged beginning, or a gap between rounds."""
        folder = Path(folder)
        if not (folder / START).is_file():
            raise TraceError(f"{folder}: found no {START}, expected a folder that a recorder has written")
        configuration = _configuration(_fields(folder / START))
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError as error:
            raise TraceError(f"{folder}: cannot be read: {error.strerror}") from error
        return Trace(folder, configuration, tuple(_rounds(folder, names)))

    def __len__(self) -> int:
        """How many rounds there are."""
        return len(self._names)

    @property
    def prefill(self) -> Prefill | None:
        """The prompt's pass; None where it was not recorded. Raises TraceError."""
        if not (self.folder / PREFILL).is_file():
            return None
        fields, known = self._own(PREFILL, None), VERIFIED
        first = fields.number("decision.first", 0, self.configuration.target.vocab_size - 1)
        found = Prefill(first, fields.frontiers(), *self._rest(fields, known))
        fields.nothing_left(known)
        return found

    @property
    def end(self) -> End | None:
        """How the run ended; None where it did not come to its end. Raises TraceError."""
        if not (self.folder / END).is_file():
            return None
        fields = self._own(END, None)
        reason, rounds = fields.member("reason", str), fields.count("rounds", 0, LARGEST)
        if reason not in REASONS:
            raise fields.wrong(f"reason {reason!r}, expected one of {', '.join(REASONS)}")
        if rounds != len(self):
            raise fields.wrong(f"the run had {rounds} rounds, found {len(self)}: files are missing, or too many")
        last = self.configuration.target.vocab_size - 1
        tokens = fields.ids("decision.tokens", None, last) if fields.has("decision.tokens") else None
        fields.nothing_left(())
        return End(reason, rounds, None if tokens is None else tuple(map(int, tokens)))

    def rounds(self) -> Iterator[Round]:
        """The rounds in order, read one at a time. Raises TraceError at the first that is damaged."""
        for number in range(len(self)):
            yield self.round(number)

    def round(self, number: int) -> Round:
        """One round. Raises TraceError."""
        fields, known = self._own(self._names[number], number), self.configuration.stages
        last = self.configuration.target.vocab_size - 1
        frontier, anchor = fields.number("in.frontier", 0), fields.number("in.anchor", 0, last)
        extent = fields.number("in.extent", 0, LARGEST - 1)
        accepted = fields.number("decision.accepted", 0, extent)
        proposals, licensed = (
            fields.ids(name, length, last) for name, length in zip(LISTS, (extent, None), strict=True)
        )
        fields.inside("the number of decision.licensed", len(licensed), 1, accepted + 1)
        kept = fields.number("decision.kept", 0, len(licensed))
        found = Round(
            number, frontier, anchor, extent, proposals, accepted, licensed, kept, fields.frontiers(),
            *self._rest(fields, known),
        )  # fmt: skip
        fields.nothing_left(known)
        return found

    def _rest(self, fields: Fields, known: tuple[str, ...]) -> tuple[Any, Any, Any]:
        stages = fields.stages(known, self.configuration.target.vocab_size)
        return stages, fields.hashes(), fields.prefixed("extra.")

    def _own(self, name: str, number: int | None) -> Fields:
        """The fields of a file that must be of this run and, if it is a round's, of this number. Raises TraceError."""
        fields = _fields(self.folder / name)
        run = fields.member("run", str)
        if run != self.configuration.run:
            raise fields.wrong(f"of run {run!r}, expected {self.configuration.run!r}, the run of {START}")
        if number is not None and fields.count("round", 0, LARGEST) != number:
            raise fields.wrong(f"holds round {fields.count('round', 0, LARGEST)}, expected {number}, as its name says")
        return fields


def _fields(path: Path) -> Fields:
    """The fields of one file of a trace. Raises TraceError where it is no such file."""
    try:
        fields = Fields(str(path), read_tensors(path), read_metadata(path))
    except TraceError:
        raise
    except TensorFileError as error:
        raise TraceError(str(error)) from error
    if fields.member("format", str) != FORMAT:
        raise fields.wrong(f"metadata 'format' is {fields.member('format', str)!r}, expected {FORMAT!r}")
    return fields


def _rounds(folder: Path, names: list[str]) -> Iterator[str]:
    """The files of the rounds, in order. Raises TraceError for one that is missing or has another name."""

    def wrong(what: str) -> TraceError:
        return TraceError(f"{folder}: {what}")

    found = []
    for name in names:
        match = ROUND_FILE.fullmatch(name)
        if match:
            found.append(Numbered(int(match.group(1)), name))
        elif name.startswith("round") and name.endswith(".safetensors"):
            raise wrong(f"{name}: expected a name such as round-000037.safetensors")
    yield from consecutive(found, wrong)


def _configuration(fields: Fields) -> Configuration:
    """What the first file says. Raises TraceError."""
    version = fields.count("version", 0, LARGEST)
    if version != VERSION:
        raise fields.wrong(f"version {version} of the format, expected {VERSION}")
    for key in fields.members():
        if key not in MEMBERS:
            raise fields.wrong(f"unknown metadata {key!r}, expected {', '.join(MEMBERS)}")
    profile, draws = fields.member("profile", str), fields.member("draws", str, "keyed")
    for what, value, allowed in (("profile", profile, ALL_PROFILES), ("draws", draws, DRAWS)):
        if value not in allowed:
            raise fields.wrong(f"{what} {value!r}, expected one of {', '.join(allowed)}")
    made = Configuration(
        name=fields.member("name", str),
        version=fields.member("implementation_version", str),
        profile=profile,
        run=fields.member("run", str),
        target_config=fields.text("target_config"),
        draft_config=fields.text("draft_config"),
        prompt=tuple(map(int, fields.ids("prompt", None, LARGEST))),
        stop_ids=tuple(map(int, fields.ids("stop_ids", None, LARGEST))),
        drafts=fields.count("drafts", 0, LARGEST - 1),
        max_new=fields.count("max_new", 1, LARGEST),
        public=fields.optional("public", 1, LARGEST),
        capacity=fields.optional("capacity", 1, LARGEST),
        temperature=float(fields.member("temperature", float)),
        seed=fields.count("seed", 0, 2**64 - 1),
        chunks=_lengths(fields),
        draws=draws,
        sampling=_sampling(fields),
        dtypes=_dtypes(fields),
        allowed=fields.text("allowed") if fields.has("allowed") else None,
    )
    fields.nothing_left(())
    _check(fields, made)
    return made


def _lengths(fields: Fields) -> tuple[int, ...]:
    chunks = fields.member("chunks", list, [])
    if any(isinstance(length, bool) or not isinstance(length, int) or length < 1 for length in chunks):
        raise fields.wrong(f"chunks {chunks}, expected lengths from 1 on")
    return tuple(chunks)


def _sampling(fields: Fields) -> dict[str, float]:
    found = fields.member("sampling", dict, {})
    for key, value in found.items():
        if key not in SAMPLING or isinstance(value, bool) or not isinstance(value, int | float):
            raise fields.wrong(f"sampling {key!r}: {value!r}, expected numbers for {', '.join(SAMPLING)}")
    return dict(found)


def _dtypes(fields: Fields) -> dict[str, str]:
    found: Mapping[str, Any] = fields.member("dtypes", dict, {})
    for role, dtype in found.items():
        if role not in ROLES or dtype not in FLOATS:
            raise fields.wrong(
                f"dtypes {role!r}: {dtype!r}, expected {', '.join(ROLES)} with one of {', '.join(FLOATS)}"
            )
    return dict(found)


def _check(fields: Fields, made: Configuration) -> None:
    """Raise TraceError where the configuration contradicts itself, or holds configs that cannot be read."""
    try:
        vocabulary, draft = made.target.vocab_size, made.draft
    except (ConfigError, SpecDataError) as error:
        raise fields.wrong(str(error)) from error
    fields.inside("public", made.ids, 1, vocabulary)
    fields.inside("the draft's mask id", draft.mask_id, 0, vocabulary - 1)
    if made.allowed is not None and len(made.allowed) != made.ids:
        raise fields.wrong(f"allowed has {len(made.allowed)} bytes, expected {made.ids}, one for each id of a text")
    for name, tokens in (("prompt", made.prompt), ("stop_ids", made.stop_ids)):
        for slot, token in enumerate(tokens):
            fields.inside(f"{name}[{slot}]", token, 0, made.ids - 1)
    fields.inside("the prompt's length", len(made.prompt), 1, made.positions)
    if made.chunks and sum(made.chunks) != len(made.prompt):
        raise fields.wrong(f"chunks {list(made.chunks)}, expected lengths that add up to {len(made.prompt)}")
    for role, dtype in made.dtypes.items():
        if made.rules.dtypes[role] != dtype:
            raise fields.wrong(
                f"{role} is held in {dtype}, expected {made.rules.dtypes[role]}, as profile {made.profile} has it: "
                "choose the profile that the engine follows"
            )
