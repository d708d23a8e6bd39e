"""Daemon threads that run blocking calls for an event loop, and survive the ones that hang."""
