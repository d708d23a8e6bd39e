"""The worker of `harbor-v0`: drives Harbor, under an interpreter that may lack envkit.

The folder above is on the worker's path, so its modules import each other as `harbor_worker`, and
none of them imports envkit. Python 3.12 or newer, as Harbor needs.
"""
