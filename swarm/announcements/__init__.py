"""Announcements: gossip, and what is kept of the groups and states that others announce."""
