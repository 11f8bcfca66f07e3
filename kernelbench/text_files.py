"""Text files of others: read as UTF-8, and not without end."""

import errno
import os
from pathlib import Path

MOST_BYTES = 64 << 20  # of a file: /dev/zero and pipes have no size to ask for


def text_of(path: Path) -> str:
    """Return a file's text with its own line ends; a byte order mark is dropped.

    Raises UnicodeDecodeError, or OSError, also if it is larger than MOST_BYTES.
    """
    with path.open("rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return found.decode("utf-8-sig")
