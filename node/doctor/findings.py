"""The findings of an examination: one a check, with a remedy for everything that is wrong."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a node runs, but worse than it could
    ERROR = "error"  # no node starts, or it cannot do what it is configured to do


class Finding(Struct, frozen=True):
    check: str
    severity: Severity
    message: str = field(name="said")  # what was found, and the limit compared with it; safe to print; JSON: "said"
    remedy: str | None = None  # None where the finding is OK


class Report(Struct, frozen=True):
    """What ``starling doctor --json`` prints."""

    healthy: bool  # whether no finding is an error
    findings: tuple[Finding, ...]


def ok(check: str, message: str) -> Finding:
    return Finding(check, Severity.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, Severity.WARNING, message, remedy)


def error(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, Severity.ERROR, message, remedy)


def report_of(findings: tuple[Finding, ...]) -> Report:
    return Report(all(finding.severity is not Severity.ERROR for finding in findings), findings)
