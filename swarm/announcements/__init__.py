"""Announcements: gossip, and the pools of the groups and states that other nodes announce."""
