"""Sharing environments: an index of packages on any web server, and installing from it."""

from envkit_sharing.index import Index, Package, read_index, write_index

__all__ = ["Index", "Package", "read_index", "write_index"]
