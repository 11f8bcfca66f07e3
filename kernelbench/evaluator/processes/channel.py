"""Messages between the referee and a worker: length-prefixed bytes over a Unix socket, and file descriptors.

Towards a worker a message is JSON. Back from one it is JSON of a fixed schema or the packed output
descriptors of `layout`; never pickle, never more than `MAX_BYTES`.
"""

import array
import json
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

MAX_BYTES = 4 << 20
_LENGTH = struct.Struct("<I")


class ChannelClosed(Exception):  # noqa: N818 - a state
    """The other side is gone."""


class ChannelGarbage(Exception):  # noqa: N818 - a state
    """Bytes that are no message."""


class ChannelTimeout(Exception):  # noqa: N818 - a state
    """Nothing arrived in time."""


def readable(fd: int, timeout_s: float) -> bool:
    """Return True if there is something to read, or an end, within the time, for any descriptor."""
    poll = selectors.PollSelector()
    poll.register(fd, selectors.EVENT_READ)
    return bool(poll.select(max(0.0, timeout_s)))


class Channel:
    """`takes_fds`: whether descriptors are accepted; the referee takes none from a worker."""

    def __init__(self, sock: socket.socket, takes_fds: bool = True) -> None:
        self.sock = sock
        self.takes_fds = takes_fds

    def send(self, payload: bytes, fds: Sequence[int] = ()) -> None:
        data = _LENGTH.pack(len(payload)) + payload
        try:
            if fds:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                sent = self.sock.sendmsg([data], ancillary)
                data = data[sent:]
            if data:
                self.sock.sendall(data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, timeout_s: float | None = None) -> tuple[bytes, list[int]]:
        """Return the next message and the descriptors that came with it.

        Raises ChannelClosed at end of file, ChannelGarbage on an oversized message, ChannelTimeout when
        `timeout_s` runs out before the message is whole.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        fds: list[int] = []
        head = self._read(_LENGTH.size, deadline, fds)
        (length,) = _LENGTH.unpack(head)
        if length > MAX_BYTES:
            raise ChannelGarbage(f"a message of {length} bytes")
        return self._read(length, deadline, fds), fds

    def _read(self, count: int, deadline: float | None, fds: list[int]) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not readable(self.sock.fileno(), left):
                    raise ChannelTimeout
            space = socket.CMSG_SPACE(16 * 4) if self.takes_fds else 0
            try:
                data, ancillary, _, _ = self.sock.recvmsg(count - len(parts), space)
            except OSError as error:
                raise ChannelClosed from error
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    received = array.array("i")
                    received.frombytes(content[: len(content) - len(content) % received.itemsize])
                    fds.extend(received)
            if not data:
                raise ChannelClosed
            parts += data
        return bytes(parts)

    def send_json(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        self.send(json.dumps(message).encode(), fds)

    def receive_json(self, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        payload, fds = self.receive(timeout_s)
        return json.loads(payload), fds

    def close(self) -> None:
        self.sock.close()
