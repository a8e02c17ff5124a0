"""What is kept of what a program writes."""


class Output:
    """The beginning and the end of what was read, and a count of what is left out between them.

    Args:
        limit: How many bytes are kept.
    """

    def __init__(self, limit: int) -> None:
        self.size = 0
        """How many bytes there were."""
        self.limit = limit
        self._head, self._tail = bytearray(), bytearray()
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        self.size += len(data)
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -self._tail_size]

    @property
    def is_cut(self) -> bool:
        """Whether something is left out."""
        return self.size > self.limit

    def text(self) -> str:
        """What is kept, as text; bytes that are no UTF-8 are replaced."""
        if not self.is_cut:
            return (self._head + self._tail).decode(errors="replace")
        left_out = f"\n[... {self.size - self.limit:,} bytes are left out ...]\n"
        return self._head.decode(errors="replace") + left_out + self._tail.decode(errors="replace")
