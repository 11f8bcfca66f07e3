"""Seccomp: system calls that no kernel needs fail with EPERM, in a process and all it starts.

The filter is a list of what is refused, not of what is allowed: compilers, Python and OpenMP use too many
calls to name. It refuses looking into other processes, new namespaces and mounts, kernel interfaces with a
history of holes (bpf, io_uring, userfaultfd, perf, keys), and setting clocks.
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

_SET_MODE_FILTER = 1
# All threads at once; and on kernels that slow filtered processes down against speculative store bypass, not:
# baselines and candidates must run alike, and as fast as anywhere else.
_FLAGS = (1 << 0) | (1 << 2)

_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000  # the CLONE_NEW flags: cgroup, uts, ipc, user, pid, net, mount

# From number 424 on they are the same on every architecture.
_REFUSED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    audit: int  # AUDIT_ARCH of <linux/audit.h>
    seccomp: int
    clone: int
    clone3: int
    foreign_from: int | None  # numbers from here on are those of another ABI
    refused: dict[str, int]


ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        seccomp=317,
        clone=56,
        clone3=435,
        foreign_from=0x40000000,
        refused={
            "ptrace": 101, "adjtimex": 159, "acct": 163, "chroot": 161, "settimeofday": 164, "mount": 165,
            "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "pivot_root": 155,
            "init_module": 175, "delete_module": 176, "quotactl": 179, "clock_settime": 227,
            "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
            "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
            "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
            "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        seccomp=277,
        clone=220,
        clone3=435,
        foreign_from=None,
        refused={
            "ptrace": 117, "adjtimex": 171, "acct": 89, "chroot": 51, "settimeofday": 170, "mount": 40,
            "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142, "pivot_root": 41,
            "init_module": 105, "delete_module": 106, "quotactl": 60, "clock_settime": 112,
            "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97,
            "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
            "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270,
            "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "kexec_file_load": 294, "bpf": 280,
            "userfaultfd": 282,
        },
    ),
}  # fmt: skip


def why_not() -> str | None:
    """Why this machine cannot filter system calls; None where it can."""
    if platform.machine() not in ARCHITECTURES:
        return f"the numbers of {platform.machine()}'s system calls are not known here"
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text()
    except OSError:
        return "this kernel has no seccomp filters"
    return None if "errno" in actions else "this kernel's seccomp cannot answer with an error"


def refuse() -> None:
    """Install the filter, for good. Needs no_new_privs. Raises OSError."""
    machine = ARCHITECTURES[platform.machine()]
    code = program(machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(machine.seccomp, _SET_MODE_FILTER, _FLAGS, header) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {errno.errorcode.get(number, number)}")


def program(machine: Architecture) -> bytes:
    """The filter in classic BPF: 8 bytes an instruction, jumps counted from the one that follows."""
    refused = sorted({*machine.refused.values(), *_REFUSED_EVERYWHERE.values()})
    # Where a test jumps to, counted from the end; what follows the tests is the code of `tail`.
    tail = [
        _instruction(_RETURN, _ALLOW),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),  # of clone
        _instruction(_ANY_BIT, _NEW_NAMESPACES, 1, 0),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        # clone3 hides its flags in memory; told that there is none, the C library takes clone.
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    allow, clone, deny, absent = 0, 1, 4, 5
    tests = [(_EQUALS, number, deny) for number in refused]
    tests += [(_EQUALS, machine.clone, clone), (_EQUALS, machine.clone3, absent)]
    if machine.foreign_from is not None:
        tests.insert(0, (_AT_LEAST, machine.foreign_from, deny))
    body = [
        _instruction(operation, value, len(tests) - 1 - position + target)
        for position, (operation, value, target) in enumerate(tests)
    ]
    head = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_EQUALS, machine.audit, 1, 0),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_LOAD, _NUMBER_AT),
    ]
    assert allow == 0
    return b"".join((*head, *body, *tail))


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", operation, if_true, if_false, value)
