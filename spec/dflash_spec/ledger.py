"""The ledger freezes every clause: an id never vanishes and a text never changes in silence.

`python -m dflash_spec.ledger` adds new clauses. A changed or vanished one is refused unless it is named after
`--rewrite`, so that the change shows in the command, in the ledger and in its review. `--check` writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_spec.errors import DFlashError, SpecDataError
from dflash_spec.files import canonical_json, write_atomic
from dflash_spec.registry import ROOT, Clause, load_clauses

LEDGER = ROOT / "ledger.json"


def _plain(value: Any) -> Any:
    """`value` with every run of white space in its texts as one space."""
    if isinstance(value, str):
        return " ".join(value.split())
    return [_plain(item) for item in value]


def digest(clause: Clause) -> str:
    """sha256 of the clause's whole content, white space normalised."""
    return hashlib.sha256(canonical_json({k: _plain(v) for k, v in asdict(clause).items()}).encode()).hexdigest()


def current() -> dict[str, str]:
    """Clause id -> digest of its content now."""
    return {id_: digest(clause) for id_, clause in sorted(load_clauses().items())}


def frozen(path: Path = LEDGER) -> dict[str, str]:
    """Clause id -> digest in the ledger; empty where there is none. Raises SpecDataError."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SpecDataError(f"{path.name}: cannot be read: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise SpecDataError(f"{path.name}: expected an object of clause ids and digests")
    return data


def differences(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """One line for each clause that is new, changed or gone since the ledger was written."""
    lines = [f"{id_}: new" for id_ in now if id_ not in then]
    lines += [f"{id_}: changed" for id_ in now if id_ in then and now[id_] != then[id_]]
    return sorted(lines + [f"{id_}: vanished" for id_ in then if id_ not in now])


def merged(now: Mapping[str, str], then: Mapping[str, str], rewrite: Collection[str]) -> dict[str, str]:
    """The next ledger. Raises SpecDataError for a changed or vanished clause that is not in `rewrite`."""
    for line in differences(now, then):
        id_, what = line.split(": ")
        if what != "new" and id_ not in rewrite:
            raise SpecDataError(f"{line}, expected the frozen text; `--rewrite {id_}` to change it on purpose")
    return dict(sorted(now.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the ledger; exit code 1 where a frozen clause has changed or vanished, or `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m dflash_spec.ledger", description=__doc__.splitlines()[0])
    parser.add_argument("--rewrite", nargs="*", default=[], metavar="ID", help="clauses whose text may change")
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args(argv)
    try:
        now, then = current(), frozen()
        if arguments.check:
            print("\n".join(differences(now, then)) or f"{len(now)} clauses, as frozen")
            return int(now != then)
        ledger = merged(now, then, arguments.rewrite)
    except DFlashError as error:
        print(error, file=sys.stderr)
        return 1
    write_atomic(LEDGER, (json.dumps(ledger, indent=1) + "\n").encode())
    print("\n".join(differences(now, then)) or f"{len(now)} clauses, none new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
