"""Golden trajectories: recorded episodes that must replay byte for byte.

A `-v0` means that the same seed, task and replies give the same observations, images, rewards and
info. A golden file holds such episodes with their replies, so a replay needs no policy and any
difference comes from the environment. Images are kept by the hash of their pixels.
"""

from envkit_certify.golden.changes import Change, changes
from envkit_certify.golden.files import load, save
from envkit_certify.golden.recording import record

__all__ = ["Change", "changes", "load", "record", "save"]
