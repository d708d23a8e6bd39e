"""Daemon threads that run blocking calls for an event loop and tolerate hung calls."""
