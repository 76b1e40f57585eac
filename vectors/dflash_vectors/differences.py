"""Known differences of published implementations: which of their failures are understood, and why.

`peers/differences.yaml` is a list of records:

    - implementation: dflash      # describe()["name"]
      version: "0.1.0"            # optional: describe()["version"]; without it, every version
      profile: zlab               # optional
      op: law.one_hot             # exactly one of op, case, clause
      verdict: legitimate         # legitimate: both may be right | wrong: it breaks the clause
      why: One sentence.

A failure that a record explains is still shown as failed; it does not change the verdict of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dflash_spec.errors import SpecDataError
from dflash_spec.registry import check_keys, load_clauses, load_ops

FILE = Path(__file__).parent / "peers" / "differences.yaml"
VERDICTS = ("legitimate", "wrong")
SUBJECTS = ("op", "case", "clause")


@dataclass(frozen=True)
class Difference:
    """One record. `subject` is op, case or clause, and `value` its name."""

    implementation: str
    version: str
    profile: str
    subject: str
    value: str
    verdict: str
    why: str

    def explains(self, name: str, version: str, profile: str, **failed: str) -> bool:
        """Whether this record is about a failure of implementation `name`; `failed` has op, case and clause."""
        return (
            self.implementation == name
            and self.version in ("", version)
            and self.profile in ("", profile)
            and failed[self.subject] == self.value
        )


def read_differences(path: Path = FILE) -> tuple[Difference, ...]:
    """The records of a file, in order; none if the file is absent. Raises SpecDataError."""
    if not path.is_file():
        return ()
    try:
        records = yaml.safe_load(path.read_text("utf-8")) or []
    except yaml.YAMLError as error:
        raise SpecDataError(f"{path.name}: not valid YAML: {error}") from error
    if not isinstance(records, list):
        raise SpecDataError(f"{path.name}: found {type(records).__name__}, expected a list of records")
    return tuple(_record(record, f"{path.name}: record {number}") for number, record in enumerate(records, 1))


def _record(record: Any, where: str) -> Difference:
    if not isinstance(record, dict):
        raise SpecDataError(f"{where}: found {record!r}, expected a mapping")
    check_keys(record, where, ("implementation", "verdict", "why"), ("version", "profile", *SUBJECTS))
    subjects = [subject for subject in SUBJECTS if subject in record]
    if len(subjects) != 1:
        raise SpecDataError(f"{where}: found {subjects}, expected exactly one of {', '.join(SUBJECTS)}")
    subject, value = subjects[0], str(record[subjects[0]])
    known = {"op": set(load_ops()), "clause": set(load_clauses())}.get(subject)
    if known is not None and value not in known:
        raise SpecDataError(f"{where}: {subject} {value!r} is not in the spec")
    if record["verdict"] not in VERDICTS:
        raise SpecDataError(f"{where}: verdict {record['verdict']!r}, expected one of {', '.join(VERDICTS)}")
    return Difference(
        str(record["implementation"]), str(record.get("version", "")), str(record.get("profile", "")),
        subject, value, record["verdict"], str(record["why"]).strip(),
    )  # fmt: skip
