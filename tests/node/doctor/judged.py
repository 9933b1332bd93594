"""Checks of one finding of the doctor."""

from __future__ import annotations

from node.doctor.findings import Finding, Severity


def with_remedy(finding: Finding, severity: Severity, *facts: str) -> None:
    """``facts``: figures, addresses, paths, names, commands and keys that the message or the remedy must hold."""
    assert finding.severity is severity, finding
    assert (finding.remedy is None) == (severity is Severity.OK)
    for fact in facts:
        assert fact in f"{finding.message} {finding.remedy}"
