"""A network in memory, in virtual time, with faults drawn from a seed."""
