"""The loop of the process: read a request, run its query, write the answer, until the other side closes the socket.

Frames are 8 bytes of length, big-endian, and a body. A request is marshaled: `(image, query, limits, max_rows)`. An
answer is JSON, because the other side does not trust this process: `["found", columns, rows, has_more]` or
`["refused", text, is_too_long]`.
"""

import json
import marshal
import math
import resource
import sqlite3
import sys
import time
from contextlib import closing, suppress

from ._query import TOO_LARGE, QueryLimits, QueryRefused, run_query

_SQLITE_BYTES = 256 * 2**20
"""The memory that sqlite may use, which it counts itself: so the same query always reaches this limit at the same
place."""
_ADDRESS_BYTES = 2 * 2**30
"""The address space of the process, for everything else."""


def serve() -> None:
    """Answer requests on the standard input and output."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # macOS refuses this limit
        _limit(resource.RLIMIT_AS, _ADDRESS_BYTES)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA hard_heap_limit = {_SQLITE_BYTES}")
    with suppress(BrokenPipeError, ConnectionResetError), open(0, "rb") as requests, open(1, "wb") as answers:
        while header := requests.read(8):
            size = int.from_bytes(header)
            request = requests.read(size)
            if len(request) < size:
                return
            try:
                image, query, limits, max_rows = marshal.loads(request)
                limits = QueryLimits(*limits)
                # The kernel kills this process (SIGXCPU) after that much more CPU time.
                _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.max_cpu_s)
                found = run_query(image, query, limits, max_rows)
                answer = json.dumps(["found", *found], default=lambda blob: {"hex": blob.hex()}).encode()
            except QueryRefused as error:
                answer = json.dumps(["refused", str(error), error.is_too_long]).encode()
            except MemoryError:
                answer = json.dumps(["refused", TOO_LARGE, False]).encode()
            answers.write(len(answer).to_bytes(8) + answer)
            answers.flush()


def _limit(which: int, most: int) -> None:
    """Set a soft limit, below the hard one."""
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
