"""Roles: a kernel's threads parted; their barriers, phases and waits derived, and the protocol proven."""
