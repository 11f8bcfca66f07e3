"""The system call filter: what it refuses fails with EPERM, everything a kernel needs goes on as ever."""

import ctypes
import platform
import socket
import subprocess
import threading
from collections.abc import Callable

import pytest

from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.sandbox import seccomp
from tests.helpers.evaluator.trial import in_child

pytestmark = pytest.mark.skipif(seccomp.why_not() is not None, reason=str(seccomp.why_not()))
MACHINE = seccomp.MACHINES.index(platform.machine()) if platform.machine() in seccomp.MACHINES else 0
libc = ctypes.CDLL(None, use_errno=True)


def filtered(action: Callable[[], object]) -> str:
    """What `action` gives behind the filter, or the name of the error it ends with."""
    return in_child(seccomp.refuse, action)


def call(number: int, *arguments: int) -> None:
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")


@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_what_no_kernel_needs_is_refused(name: str) -> None:
    if name in ("reboot", "kexec_load"):
        pytest.skip("nobody should try this where the filter might not hold")
    assert filtered(lambda: call(seccomp.REFUSED[name][MACHINE], 0, 0, 0, 0, 0, 0)) == "EPERM"


OTHERS = {"netlink": 16, "packet": 17, "alg": 38, "vsock": 40, "bluetooth": 31, "can": 29, "xdp": 44}


@pytest.mark.parametrize("family", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("hidden", [0, 1 << 32], ids=["plain", "with_more_bits"])
def test_sockets_that_no_network_namespace_covers_are_refused(family: int, hidden: int) -> None:
    """The kernel looks at the lower 32 bits of the family only."""

    def open_one() -> str:
        if libc.syscall(seccomp.SOCKET[MACHINE], ctypes.c_long(family | hidden), 3, 0) < 0:
            raise OSError(ctypes.get_errno(), "")
        return "opened"

    assert filtered(open_one) == "EAFNOSUPPORT"


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET", "AF_INET6"])
def test_local_sockets_and_those_of_the_internet_are_allowed(family: str) -> None:
    assert filtered(lambda: socket.socket(getattr(socket, family)).close()) in ("None", "EAFNOSUPPORT")
    assert filtered(lambda: len(socket.socketpair())) == "2"


def test_new_namespaces_are_refused_and_new_processes_are_not() -> None:
    clone = seccomp.CLONE[MACHINE]
    assert filtered(lambda: call(clone, 0x10000000 | 17, 0, 0, 0, 0)) == "EPERM"
    assert filtered(lambda: subprocess.run(["true"], check=False).returncode) == "0"


def test_threads_start_though_clone3_is_hidden() -> None:
    def start() -> object:
        seen: list[int] = []
        threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(seen)

    assert filtered(start) == "[0, 1, 2, 3]"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 has a second table of system calls")
def test_the_numbers_of_another_abi_are_refused() -> None:
    assert filtered(lambda: call(0x40000000 + 39)) == "EPERM"


def test_a_user_who_is_denied_namespaces_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert filtered(lambda: sandbox.unshare_namespaces(("landlock", "seccomp"))) == "None"
    assert filtered(lambda: sandbox.unshare_namespaces(("pid_namespace",))) == "EPERM"


def test_every_jump_lands_within_the_program() -> None:
    for machine in range(len(seccomp.MACHINES)):
        code = seccomp.program(machine)
        length = len(code) // 8
        assert length < 256
        for position in range(length):
            operation, yes, no = int.from_bytes(code[8 * position : 8 * position + 2], "little"), *code[8 * position + 2 : 8 * position + 4]  # fmt: skip
            if operation & 7 == 5:
                assert position + 1 + max(yes, no) < length
