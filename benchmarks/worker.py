"""A process that measures the contenders of one environment: it answers requests, one JSON line each.

    {"do": "prepare", "row": ..., "name": ..., "size": ...}    {"note": ..., "versions": {...}, "is_reimplemented": ...}
    {"do": "repeat", "row": ..., "name": ..., "size": ...}     {"value": 0.0012}
    {"do": "drop"}                                             {}

Before the first request it answers {}: all modules are imported. A request without a figure is answered with
{"reason": "..."}; what was not expected is printed to the log.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file and with -P, so that no folder of the checkout comes before a peer
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.contender import NotMeasured, Repetition, import_contenders, registered


class Worker:
    """What is prepared, and the answers to requests."""

    def __init__(self) -> None:
        self._prepared: dict[tuple[str, str, Any], Repetition] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for; return what happened."""
        try:
            match request:
                case {"do": "prepare", "row": row, "name": name, "size": size}:
                    return self._prepare(row, name, size)
                case {"do": "repeat", "row": row, "name": name, "size": size}:
                    return {"value": measured(self._prepared[row, name, size])}
                case {"do": "drop"}:
                    return self._drop()
                case _:
                    raise ValueError(f"unknown request {request!r}")
        except NotMeasured as reason:
            return {"reason": str(reason)}
        except Exception:
            traceback.print_exc()
            return {"reason": "not measured: it failed"}

    def _prepare(self, row: str, name: str, size: Any) -> dict[str, Any]:
        contender = registered(row, name)
        self._prepared[row, name, size] = contender.set_up(size)
        gc.collect()
        gc.freeze()  # a repetition pays for the garbage that it makes, not for walking through what others prepared
        return contender.described()

    def _drop(self) -> dict[str, Any]:
        for repetition in self._prepared.values():
            getattr(repetition, "close", lambda: None)()
        self._prepared.clear()
        gc.unfreeze()
        return {}


def measured(repetition: Repetition) -> float:
    """Run a repetition: its own figure, else its CPU time in seconds."""
    gc.collect()
    start = time.process_time()
    value = repetition()
    return time.process_time() - start if value is None else value


def main() -> None:
    """Answer requests until the input ends. What a peer prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import_contenders(sys.argv[1])
    worker = Worker()
    print(json.dumps({}), file=answers, flush=True)  # ready
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
