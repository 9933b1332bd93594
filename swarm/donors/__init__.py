"""Donors: machines of friends that lend their engine to one owner. The owner's side and the donor's."""

from __future__ import annotations

from typing import Final

DONOR_LIST: Final = "donors.json"  # in the owner's data directory
