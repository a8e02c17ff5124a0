"""The output of a program, cut to a maximum size."""


class Output:
    """The beginning and the end of an output, and the number of bytes left out between them.

    Args:
        limit: The maximum number of bytes to keep.
    """

    def __init__(self, limit: int) -> None:
        self.size = 0
        """The number of bytes that were added."""
        self.limit = limit
        self._head, self._tail = bytearray(), bytearray()
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self.size += len(data)
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -self._tail_size]

    @property
    def is_cut(self) -> bool:
        """Whether bytes are left out."""
        return self.size > self.limit

    def text(self) -> str:
        """Return the kept bytes as a string. Invalid UTF-8 is replaced by U+FFFD."""
        if not self.is_cut:
            return (self._head + self._tail).decode(errors="replace")
        left_out = f"\n[... {self.size - self.limit:,} bytes are left out ...]\n"
        return self._head.decode(errors="replace") + left_out + self._tail.decode(errors="replace")
