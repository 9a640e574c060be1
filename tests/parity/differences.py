"""The report of recorded cases that ran on another release: read, written after every case, summarised by family."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the comparison of a case's outputs; `difference` is the largest one, infinite where a run failed."""

    difference: float
    measured: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def failed(cls, reason: str) -> Finding:
        """Return the finding of a run that gave no outputs."""
        return cls(math.inf, [], [reason])

    def __str__(self) -> str:
        size = f"{self.difference:.2e}" if math.isfinite(self.difference) else "failed"
        return "; ".join((size, *self.problems))


class Report:
    """Findings by FAMILY/NAME: of the reference against the recorded outputs, of ours against the reference."""

    def __init__(self, path: Path, cases: dict[str, dict[str, Any]]) -> None:
        self._path = path
        self._cases = cases

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read the report of a run before, an empty one where there is none."""
        return cls(path, json.loads(path.read_text("utf-8")) if path.exists() else {})

    def __contains__(self, case: str) -> bool:
        return case in self._cases

    def note(self, case: str, reference: Finding, ours: Finding | None, seconds: float) -> None:
        """Add a case and write the report, whole or not at all."""
        entry: dict[str, Any] = {"seconds": round(seconds, 1), "reference": asdict(reference)}
        if ours is not None:
            entry["ours"] = asdict(ours)
        self._cases[case] = entry
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._cases, indent=1), "utf-8")
        partial.replace(self._path)

    def forget_problems(self, cases: Iterable[str]) -> None:
        """Drop those of the cases that differ or failed, so that they run again."""
        for case in cases:
            if any(finding.problems for finding in self.findings(case).values()):
                del self._cases[case]

    def findings(self, case: str) -> dict[str, Finding]:
        """Return the findings of a case by side (`reference`, `ours`), none where it did not run."""
        entry = self._cases.get(case, {})
        return {side: Finding(**entry[side]) for side in ("reference", "ours") if side in entry}

    def has_problems(self, cases: Iterable[str]) -> bool:
        """Return True where one of the cases differs or failed."""
        return any(finding.problems for case in cases for finding in self.findings(case).values())

    def line(self, case: str) -> str:
        """Return a line of text about a case, its largest differences and what is wrong."""
        findings = self.findings(case)
        word = "FAIL" if any(finding.problems for finding in findings.values()) else "ok  "
        sides = ", ".join(f"{side} {finding}" for side, finding in findings.items())
        return f"{word} {case} ({self._cases[case]['seconds']} s): {sides}"

    def summary_of(self, family: str) -> str:
        """Return a line of text about a family: how many cases agree on each side, and their largest difference."""
        found = [self.findings(case) for case in self._cases if case.partition("/")[0] == family]
        parts = [f"{len(found)} cases"]
        for side in ("reference", "ours"):
            of_side = [findings[side] for findings in found if side in findings]
            if of_side:
                same = [finding.difference for finding in of_side if not finding.problems]
                parts.append(f"{side}: {len(same)} of {len(of_side)} agree, within {max(same, default=0.0):.2e}")
        return f"{family}: " + "; ".join(parts)

    def summary(self, families: Iterable[str]) -> str:
        """Return a line of text for each of the families."""
        return "\n".join(self.summary_of(family) for family in sorted(families))
