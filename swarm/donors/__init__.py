"""Donors: machines of friends that lend their engine to one owner. The owner's side and the donor's."""
