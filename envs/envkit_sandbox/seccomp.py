"""A seccomp filter against system calls that applications do not need."""

import os
from functools import cache
from typing import Any, Final

from envkit.errors import MissingDependencyError

REFUSED: Final = (
    "add_key",
    "bpf",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "finit_module",
    "delete_module",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "reboot",
    "request_key",
    "setns",
    "swapon",
    "swapoff",
    "umount2",
    "unshare",
    "userfaultfd",
)
"""System calls that fail with EPERM in the sandbox."""
_FAMILIES: Final = (1, 2, 10, 16)
"""Sockets' address families that work: UNIX, INET, INET6 and NETLINK. VSOCK, for one, would reach a
virtual machine's host, which no network namespace prevents."""
_NOT_SUPPORTED: Final = 97
"""EAFNOSUPPORT."""
_NEW_USER_NAMESPACE: Final = 0x10000000
_PUSH_INPUT: Final = 0x5412
"""TIOCSTI, which types into a terminal."""


@cache
def filter_program() -> bytes:
    """Return the filter as a BPF program for bubblewrap's `--seccomp`.

    Raises:
        MissingDependencyError: pyseccomp or libseccomp is not installed.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:  # RuntimeError: the C library is missing
        raise MissingDependencyError.for_extra(
            "a sandboxed Linux session", "pyseccomp", "linux-desktop"
        ) from error
    module: Any = pyseccomp
    rules = module.SyscallFilter(module.ALLOW)
    refuse = module.ERRNO(1)
    for name in REFUSED:
        rules.add_rule(refuse, name)
    flags = module.Arg(0, module.MASKED_EQ, _NEW_USER_NAMESPACE, _NEW_USER_NAMESPACE)
    rules.add_rule(refuse, "clone", flags)
    rules.add_rule(refuse, "ioctl", module.Arg(1, module.MASKED_EQ, 0xFFFFFFFF, _PUSH_INPUT))
    _add_families(module, rules)
    rules.add_rule(module.ERRNO(38), "clone3")  # ENOSYS: its flags are out of a filter's sight
    with open(os.memfd_create("seccomp"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _add_families(module: Any, rules: Any) -> None:  # noqa: ANN401  # pyseccomp has no types
    refuse, last = module.ERRNO(_NOT_SUPPORTED), max(_FAMILIES)
    for name in ("socket", "socketpair"):
        # The kernel takes an int: what is above in the register is greater than any family.
        rules.add_rule(refuse, name, module.Arg(0, module.GT, last))
        for family in set(range(last)) - set(_FAMILIES):
            rules.add_rule(refuse, name, module.Arg(0, module.EQ, family))
