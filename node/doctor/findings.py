"""What an examination finds: one line a check, and for everything that is not in order the remedy, in words."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a node runs, with less than it could have
    ERROR = "error"  # no node starts, or it cannot do what it was configured to do


class Finding(Struct, frozen=True):
    check: str
    severity: Severity
    said: str  # what was found, with the limit it was compared with; safe to print
    remedy: str | None = None  # what to do; None where nothing is to be done


class Report(Struct, frozen=True):
    """What ``starling doctor --json`` prints."""

    healthy: bool  # no finding is an error
    findings: tuple[Finding, ...]


def ok(check: str, said: str) -> Finding:
    return Finding(check, Severity.OK, said)


def warning(check: str, said: str, remedy: str) -> Finding:
    return Finding(check, Severity.WARNING, said, remedy)


def error(check: str, said: str, remedy: str) -> Finding:
    return Finding(check, Severity.ERROR, said, remedy)


def report_of(findings: tuple[Finding, ...]) -> Report:
    return Report(all(finding.severity is not Severity.ERROR for finding in findings), findings)
