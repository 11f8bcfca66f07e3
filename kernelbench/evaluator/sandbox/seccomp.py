"""Seccomp: system calls that no kernel needs fail with EPERM, in a process and all it starts.

The filter is a list of what is refused, not of what is allowed: compilers, Python and OpenMP use too many
calls to name. It refuses looking into other processes, new namespaces and mounts, kernel interfaces with a
history of holes (bpf, io_uring, userfaultfd, perf, keys), and setting clocks. Of sockets it allows local
ones and those of the internet, which end at the network namespace; others, such as those that lead to a
hypervisor (vsock), no namespace covers. https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

import ctypes
import errno
import platform
import struct
from pathlib import Path

_SET_MODE_FILTER = 1
# All threads at once; and on kernels that slow filtered processes down against speculative store bypass, not:
# baselines and candidates must run alike, and as fast as anywhere else.
_FLAGS = (1 << 0) | (1 << 2)

_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000  # the CLONE_NEW flags: cgroup, uts, ipc, user, pid, net, mount

MACHINES = ("x86_64", "aarch64")

# The numbers on the two machines; those from 424 on are the same everywhere.
REFUSED = {
    "ptrace": (101, 117), "pivot_root": (155, 41), "adjtimex": (159, 171), "chroot": (161, 51),
    "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40), "umount2": (166, 39),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "init_module": (175, 105),
    "delete_module": (176, 106), "quotactl": (179, 60), "clock_settime": (227, 112),
    "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "unshare": (272, 97), "perf_event_open": (298, 241), "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "clock_adjtime": (305, 266),
    "setns": (308, 268), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "finit_module": (313, 273), "kexec_file_load": (320, 294), "bpf": (321, 280),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "mount_setattr": (442, 442),
}  # fmt: skip
CLONE, _CLONE3, _SECCOMP = (56, 220), (435, 435), (317, 277)
SOCKET = (41, 198)
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6 of <linux/socket.h>
_AUDIT = (0xC000003E, 0xC00000B7)  # AUDIT_ARCH of <linux/audit.h>
_FOREIGN_FROM = (0x40000000, None)  # numbers from here on are those of another ABI


def why_not() -> str | None:
    """Reason why this machine cannot filter system calls; None where it can."""
    if platform.machine() not in MACHINES:
        return f"the numbers of {platform.machine()}'s system calls are not known here"
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text()
    except OSError:
        return "this kernel has no seccomp filters"
    return None if "errno" in actions else "this kernel's seccomp cannot answer with an error"


def refuse() -> None:
    """Install the filter, for good. Needs no_new_privs. Raises OSError."""
    machine = MACHINES.index(platform.machine())
    code = program(machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _FLAGS, header) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {errno.errorcode.get(number, number)}")


def program(machine: int) -> bytes:
    """Return the filter for MACHINES[machine] in classic BPF: 8 bytes an instruction.

    Jumps are counted from the instruction that follows.
    """
    # What the tests jump to, by its place behind them; without a jump a call is allowed.
    tail = [
        _instruction(_RETURN, _ALLOW),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),  # of clone
        _instruction(_ANY_BIT, _NEW_NAMESPACES, 1, 0),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        # clone3 hides its flags in memory; told that there is none, the C library takes clone.
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),  # of socket
        *(_instruction(_EQUALS, family, len(FAMILIES) - n, 0) for n, family in enumerate(FAMILIES)),
        _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        _instruction(_RETURN, _ALLOW),
    ]
    clone, deny, absent, socket = 1, 4, 5, 6
    tests = [(_EQUALS, numbers[machine], deny) for numbers in REFUSED.values()]
    tests += [(_EQUALS, CLONE[machine], clone), (_EQUALS, _CLONE3[machine], absent)]
    tests.append((_EQUALS, SOCKET[machine], socket))
    foreign_from = _FOREIGN_FROM[machine]
    if foreign_from is not None:
        tests.insert(0, (_AT_LEAST, foreign_from, deny))
    body = [
        _instruction(operation, value, len(tests) - 1 - position + target)
        for position, (operation, value, target) in enumerate(tests)
    ]
    head = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_EQUALS, _AUDIT[machine], 1, 0),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_LOAD, _NUMBER_AT),
    ]
    return b"".join((*head, *body, *tail))


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", operation, if_true, if_false, value)
