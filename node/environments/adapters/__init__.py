"""Environments of other libraries' interfaces as ours."""
