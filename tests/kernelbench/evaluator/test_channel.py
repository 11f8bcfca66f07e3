"""The referee's end of a worker's socket: whatever comes, a message, an end, or the time runs out."""

import os
import socket
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.evaluator.processes.channel import (
    MAX_BYTES,
    Channel,
    ChannelClosed,
    ChannelGarbage,
    ChannelTimeout,
)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_message_an_end_or_a_timeout(garbage: bytes, ends: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(garbage)
        if ends:
            theirs.close()
        judge = Channel(ours, takes_fds=False)
        position = 0
        while True:
            try:
                payload, fds = judge.receive(timeout_s=0.001)
            except (ChannelClosed, ChannelGarbage, ChannelTimeout):
                break
            assert fds == []
            (length,) = struct.unpack_from("<I", garbage, position)
            assert payload == garbage[position + 4 : position + 4 + length]
            position += 4 + length


@given(st.integers(MAX_BYTES + 1, (1 << 32) - 1))
def test_a_message_that_is_too_long_is_not_waited_for(length: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", length))
        with pytest.raises(ChannelGarbage):
            Channel(ours, takes_fds=False).receive(timeout_s=60)


def test_the_deadline_holds_for_a_message_that_comes_in_drops() -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        theirs.sendall(struct.pack("<I", 1000))
        for _ in range(100):
            theirs.sendall(b"x")
            time.sleep(0.02)
        os._exit(0)
    with ours, theirs:
        started = time.monotonic()
        with pytest.raises(ChannelTimeout):
            Channel(ours, takes_fds=False).receive(timeout_s=0.2)
        assert time.monotonic() - started < 1.5
    os.kill(child, 9)
    os.waitpid(child, 0)
