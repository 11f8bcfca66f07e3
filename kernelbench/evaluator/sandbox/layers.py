"""The sandbox of a worker, layer by layer.

A layer that this machine denies is left out and reported, never assumed. What remains possible with
all layers on: reading the names of files and what they are (`stat`), the system calls that `seccomp` does
not refuse, and using the CPU time of the machine until a limit ends it; without control groups its memory
too, for memory is then limited process by process.
Without Landlock a worker can read what its user can; without a mount namespace it sees the processes of its
user in `/proc`; without either a builder writes to what other builders have built, and without another user
id too to what the referee's user owns.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.kernelbench.evaluator.sandbox import cgroups, files, landlock, mounts, seccomp
from kernelwright.kernelbench.records import Capability

_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_CLONE_NEWNET, _CLONE_NEWIPC = 0x40000000, 0x08000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 38, 36, 1
_PR_CAPBSET_DROP, _PR_SET_DUMPABLE = 24, 4
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # set the flags of a network interface
_MOST_PIECES = 1024  # IOV_MAX
_INDUCTOR = "inductor"  # its cache, beneath that of a builder
_TIMERS = 256  # pending ones: they expire while a process is stopped, at the cost of others
_UIDS = {"builder": 64001, "candidate": 64002}
TRUSTED = ("oracle", "baseline", "toolchain")  # the first two run the user's own task

_NAMESPACES = {
    "pid_namespace": (_CLONE_NEWPID, "killing the first process kills every descendant, however it forked"),
    "network_namespace": (_CLONE_NEWNET, "no network but a loopback of its own"),
    "ipc_namespace": (_CLONE_NEWIPC, "no System V shared memory or message queues of other processes"),
    "mount_namespace": (
        mounts.CLONE_NEWNS,
        "all but a scratch folder is read-only, tasks are not there, /proc shows no other process",
    ),
}
HIDDEN = (files.PACKAGE / "tasks", files.PACKAGE / "redteam")  # from builders and candidates
_UNTRUSTED = ("network_namespace", "ipc_namespace", "mount_namespace")  # layers that trusted roles do without


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class SandboxSpec:
    """Sandbox of a worker, specified by the referee and applied in the worker before its first line."""

    role: str  # oracle, builder, baseline, candidate, toolchain
    scratch: str  # its working and temporary folder
    uid: int | None  # another user id than the referee's, where it can be had
    cache: str  # KERNELWRIGHT_CACHE: the role's build cache
    headers: str | None  # KERNELWRIGHT_HEADERS: precompiled headers that it only reads
    memory_bytes: int
    file_bytes: int
    processes: int
    layers: Collection[str]  # those that are on for it, by name
    gpu: bool  # whether it may use one
    entrances: Sequence[str] = ()  # of its control groups: to join one, a process writes 0 to the file

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def layers_of(role: str, on: Collection[str], gpu: bool = False) -> tuple[str, ...]:
    """Layers, among `on`, of a role's sandbox: trusted ones run the user's own task.

    With a GPU they have a mount namespace, too: CUDA looks up its own pid in /proc.
    """
    left_out = () if role not in TRUSTED else [n for n in _UNTRUSTED if not (gpu and n == "mount_namespace")]
    return tuple(name for name in on if name not in left_out)


def join_groups(entrances: Sequence[str]) -> None:
    """Put this process and what it will fork into control groups. Raises OSError."""
    for entrance in entrances:
        Path(entrance).write_text("0")


def unshare_namespaces(layers: Collection[str]) -> None:
    """Give the children of this process those namespaces of their own that are among `layers`.

    Raises OSError when one is refused: nothing may be mounted in a namespace that is still the machine's.
    """
    wanted = [(name, flag) for name, (flag, _) in _NAMESPACES.items() if name in layers]
    if not wanted:  # where they are denied, a user namespace is too
        return
    libc = _libc()
    if os.getuid() != 0:
        uid, gid = os.getuid(), os.getgid()
        if libc.unshare(_CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for name, flag in wanted:
        if libc.unshare(flag) != 0:
            raise OSError(ctypes.get_errno(), f"unshare: {name}")
    if "network_namespace" in layers:
        _bring_up_loopback()


def _bring_up_loopback() -> None:
    """Bring up `lo` in this process's own network namespace; nothing else is reachable from there.

    Nsight Compute and compute-sanitizer talk to the program that they watch over TCP on 127.0.0.1. Where it
    is not permitted, the namespace has no network at all.
    """
    request = struct.pack("16sH14x", b"lo", _IFF_UP)  # struct ifreq of netdevice(7)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, request)


def mount(spec: SandboxSpec) -> None:
    """Give this process, the first of its namespaces, its own view of the file system. Raises OSError."""
    if spec.role in TRUSTED:
        mounts.own_proc()
        return
    folders = [spec.scratch, spec.cache] if spec.role == "builder" else [spec.scratch]
    mounts.enclose(map(Path, folders), HIDDEN, writable_processes=spec.gpu)


def become_subreaper() -> None:
    """Adopt orphans of this process's tree, so that none leaves the tree."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def why_no_distinct_uid(folders: Mapping[str, Path]) -> str | None:
    """Reason why workers cannot have user ids of their own; None where they can.

    Another user must be able to enter `folders` (by their purpose), the interpreter and its packages, and the
    referee must be able to read the memory of such a user's process, which a container may deny even to root.
    """
    if os.getuid() != 0:
        return "only root can give workers another user id; they share the referee's"
    needed = {
        "the environment": Path(sys.prefix),
        "the Python installation": Path(sys.base_prefix),
        "kernelwright": Path(__file__).resolve().parents[2],
        **{f"what is installed in {folder}": folder for folder in files.installed()},
        **folders,
    }
    for what, start in needed.items():
        if any(not folder.stat().st_mode & stat.S_IXOTH for folder in (start, *start.resolve().parents)):
            return (
                f"{what} lies in a folder that other users cannot enter: chmod o+x it, or install elsewhere"
            )
    return (
        None if can_read_memory_of(_UIDS["candidate"]) else "their memory could not be read (CAP_SYS_PTRACE)"
    )


def can_read_memory_of(uid: int | None) -> bool:
    """Return True if this process may read the memory of a child that runs as `uid` (None: as itself)."""
    content = ctypes.create_string_buffer(b"here")
    ready_r, ready_w = os.pipe()
    child = os.fork()
    if child == 0:
        if uid is not None:
            os.setresuid(uid, uid, uid)
        os.write(ready_w, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(ready_r, 1)
        into = bytearray(4)
        where = np.array([ctypes.addressof(content)])
        return read_memory(child, where, 4, memoryview(into)) is None and into == b"here"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready_r)
        os.close(ready_w)


def read_memory(pid: int, addresses: np.ndarray[Any, Any], length: int, into: memoryview) -> str | None:
    """Fill `into` with the `length` bytes at each of another process's addresses; what failed, or None."""
    libc = _libc()
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    done, count = 0, len(into)
    target = ctypes.addressof(ctypes.c_char.from_buffer(into))
    while done < count:  # one call reads at most 1024 pieces, and 2 GiB
        first, skipped = divmod(done, length)
        pieces = np.empty((min(len(addresses) - first, _MOST_PIECES), 2), dtype=np.uint64)
        pieces[:, 0], pieces[:, 1] = addresses[first : first + len(pieces)], length
        pieces[0] += np.array([skipped, -skipped], dtype=np.int64).astype(np.uint64)
        local = (ctypes.c_size_t * 2)(target + done, count - done)
        got = libc.process_vm_readv(pid, local, 1, ctypes.c_void_p(pieces.ctypes.data), len(pieces), 0)
        if got <= 0:
            return os.strerror(ctypes.get_errno())
        done += got
    return None


def hide_memory() -> None:
    """Make this process's memory unreadable for others of its user. For the oracle."""
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up what root may do beyond its own files; exec does not bring it back."""
    libc = _libc()
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


def no_new_privileges() -> None:
    """Give up new privileges: set-uid programs give this process nothing from now on."""
    _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def apply(spec: SandboxSpec) -> None:
    """Sandbox this process for good. Called in the worker, after fork, before any task or candidate code."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: spec.file_bytes,
        resource.RLIMIT_DATA: spec.memory_bytes,
        resource.RLIMIT_NOFILE: 1024,
    }
    if spec.role not in TRUSTED:
        limits[resource.RLIMIT_SIGPENDING] = _TIMERS
    uid = spec.uid
    if uid is not None:
        limits[resource.RLIMIT_NPROC] = spec.processes
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    os.chdir(spec.scratch)
    os.environ.update(HOME=spec.scratch, TMPDIR=spec.scratch, TRITON_CACHE_DIR=f"{spec.cache}/triton")
    if spec.role not in TRUSTED:
        own = spec.scratch if spec.role == "candidate" else spec.cache
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{own}/{_INDUCTOR}"
        os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = (
            "0"  # it keeps them beside the trusted cache
        )
    os.environ["KERNELWRIGHT_CACHE"] = spec.cache
    if spec.headers is not None:
        os.environ["KERNELWRIGHT_HEADERS"] = spec.headers
    tempfile.tempdir = spec.scratch  # the process that this one was forked from may have looked it up before
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    elif spec.role not in TRUSTED:
        drop_capabilities()
    no_new_privileges()
    if "landlock" in spec.layers:
        headers = None if spec.headers is None else Path(spec.headers)
        private = "mount_namespace" in spec.layers
        processes = _writable_processes(spec) if spec.gpu else None
        allowed = files.access(spec.role, Path(spec.scratch), Path(spec.cache), headers, private, processes)
        landlock.restrict(allowed.read, allowed.write, allowed.enumerate)
    if spec.role == "oracle":
        hide_memory()
    elif "seccomp" in spec.layers:
        seccomp.refuse()
    if spec.role == "candidate":
        _copy_compiled(Path(spec.cache) / _INDUCTOR, Path(spec.scratch) / _INDUCTOR)


def _copy_compiled(built: Path, own: Path) -> None:
    """Copy what Inductor has generated in the builder to where a candidate's looks for it, and may write too.

    Runs in the sandbox: a builder may have left anything.
    """
    if built.is_dir():
        with contextlib.suppress(OSError, shutil.Error):  # then it is generated once more
            shutil.copytree(built, own, symlinks=True)


def _writable_processes(spec: SandboxSpec) -> Path:
    """Part of /proc that a process that uses a GPU may write to.

    CUDA's initialization fails with error 304 (CUDA_ERROR_OPERATING_SYSTEM) if it cannot name its threads in
    /proc/self/task/TID/comm. It is all of /proc, for the processes that this one will start, where that holds
    nothing of the machine's.
    """
    harmless = "mount_namespace" in spec.layers or os.getuid() != 0
    return Path("/proc") if harmless else Path("/proc/self/task")


def uid_of(role: str) -> int | None:
    """Return the user id a role runs under where distinct ids can be had; None for the referee's own."""
    return _UIDS.get(role)


def layers(no_uid: str | None, without: Collection[str] = (), gpu: bool = False) -> tuple[Capability, ...]:
    """Each layer as it is on this machine, found by trying it in a child process; off if in `without`.

    `gpu`: whether workers use one, which needs a /proc of their own PID namespace.
    """
    if "pid_namespace" in without:
        without = {*without, "mount_namespace"}  # /proc is that of a PID namespace
    found = [_namespace(name) for name in _NAMESPACES]
    mounts_on = "mount_namespace" not in without and found[-1].on
    if gpu and not mounts_on:
        why = "CUDA needs the /proc of its PID namespace, which only a mount namespace gives it"
        found[0] = Capability(name="pid_namespace", on=False, why=why)
    uid_why = no_uid or "builder and candidate run as other users than the referee and each other"
    found.append(Capability(name="distinct_uid", on=no_uid is None, why=uid_why))
    found.append(Capability(name="no_new_privs", on=True, why="set-uid programs give nothing"))
    found.append(
        Capability(
            name="no_capabilities", on=True, why="a builder or candidate of root has none of its powers"
        )
    )
    found.append(
        Capability(name="rlimits", on=True, why="memory, file size, descriptors; processes are counted too")
    )
    groups = cgroups.parents()
    why = groups if isinstance(groups, str) else "memory, processes and threads of a worker's tree together"
    found.append(Capability(name="control_groups", on=not isinstance(groups, str), why=why))
    found += [_landlock(), _seccomp()]
    return tuple(
        Capability(name=layer.name, on=False, why="left off on request") if layer.name in without else layer
        for layer in found
    )


def _landlock() -> Capability:
    number = landlock.version()
    failed = None if number else "Linux 5.13 with landlock among its LSMs has it"
    failed = failed or _fails_with(lambda: landlock.restrict([Path("/")], []))
    if failed:
        return Capability(name="landlock", on=False, why=f"{failed}; without it any file can be read")
    signals = (
        "" if number >= 6 else "; before Landlock 6 signals to other processes of the user are not stopped"
    )
    why = f"tasks, home folders and raw devices cannot be read, only a scratch folder written{signals}"
    return Capability(name="landlock", on=True, why=why)


def _seccomp() -> Capability:
    failed = seccomp.why_not() or _fails_with(seccomp.refuse)
    why = "no looking into other processes, new namespaces, mounts, bpf, io_uring or setting of clocks"
    return Capability(name="seccomp", on=failed is None, why=failed or why)


def _fails_with(action: Callable[[], None]) -> str | None:
    """Error of `action` in a child that has given up new privileges; None where it succeeds."""
    child = os.fork()
    if child == 0:
        number = errno.EPERM
        try:
            no_new_privileges()
            action()
            number = 0
        except OSError as error:
            number = error.errno or errno.EPERM
        finally:
            os._exit(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == 0 else os.strerror(code) if code > 0 else f"killed by signal {-code}"


def _namespace(name: str) -> Capability:
    flag, why = _NAMESPACES[name]

    def unshare() -> None:
        if _libc().unshare(flag | (0 if os.getuid() == 0 else _CLONE_NEWUSER)) != 0:
            raise OSError(ctypes.get_errno(), "unshare")

    with tempfile.TemporaryDirectory() as folder:
        failed = _fails_with((lambda: _enclose(folder)) if name == "mount_namespace" else unshare)
    return Capability(name=name, on=failed is None, why=why if failed is None else f"not permitted: {failed}")


def _enclose(folder: str) -> None:
    """Try mounts in the first process of new namespaces. Raises OSError."""
    unshare_namespaces(("pid_namespace", "mount_namespace"))
    child = os.fork()
    if child == 0:
        number = errno.EPERM
        try:
            mounts.enclose([Path(folder)], HIDDEN)
            number = 0 if os.getpid() == 1 else errno.EPERM
        except OSError as error:
            number = error.errno or errno.EPERM
        finally:
            os._exit(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise OSError(code, "mount")
