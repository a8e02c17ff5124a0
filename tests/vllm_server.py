"""A vLLM server on the CPU as a child process that can be killed and started again. As a script, it serves SmolLM2."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from real_models import CACHE

MODEL_NAME = "smollm2"
MAX_MODEL_LEN = 1024

# A long float32 context fits; log-probabilities are those of the distribution sampled from.
OPTIONS = (
    *("--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "16", "--enforce-eager"),
    *("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--seed", "0"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
    "VLLM_CONFIG_ROOT": str(CACHE / "vllm"),
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first log-probabilities wait for a C++ compiler
}
# A killed server leaves its engine and its worker behind. Whoever starts this script holds the other end of its
# standard input: when that closes, also because the holder was killed, the whole process group ends.
GUARD = 'exec 3<&0; "$@" 3<&- & server=$!; { read -r _ <&3; kill -KILL 0; } & wait "$server"'


class VLLMServer:
    """One server at one address: `start`, `kill` and `start` again keep the port.

    Args:
        model: the folder of the model.
        log: the file that receives what the server prints.
        options: arguments of `vllm serve` in addition to `OPTIONS`; the last one of a kind counts.
        environment: variables in addition to `ENVIRONMENT`.
        version: one of the older versions that tests/peers/vllm/after_install.py installs; by default, the newest.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        version: str = "",
    ) -> None:
        self.log = log
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        address = ("--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", MODEL_NAME)
        vllm = Path(sys.executable).with_name("vllm")
        given = [option for option in OPTIONS if version != "0.27.0" or option != "--enable-scale-out"]  # needs no flag
        self._command = [str(vllm), "serve", str(model), *address, *given, *options]
        older = {"PYTHONPATH": str(Path(sys.prefix) / "older" / version)} if version else {}
        self._environment = {**os.environ, **ENVIRONMENT, **older, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float = 1800.0) -> None:
        """Start the server and wait until it has answered a request."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        try:
            self._wait(time.monotonic() + timeout_s)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the server, its engine and its worker with SIGKILL, in the middle of whatever they do."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 600.0) -> Any:
        """Return the answer to a request, read as JSON."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def load_weights(self, folder: Path, version: str) -> None:
        """Load other weights and label what they sample. Like vLLM itself, keep the prefix cache of the old ones.

        The server needs `VLLM_SERVER_DEV_MODE=1` in its environment.
        """
        self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        self.post("/update_weight_version", {"new_version": version})

    def _wait(self, deadline: float) -> None:
        while not self._is_healthy():
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"vLLM ended before it was ready:\n{self._last_lines()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM was not ready in time:\n{self._last_lines()}")
            time.sleep(0.5)
        self.post("/v1/completions", {"prompt": [1], "max_tokens": 1, "logprobs": 0})  # the first request is slow

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _last_lines(self, n: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    import smollm2

    CACHE.mkdir(parents=True, exist_ok=True)
    with VLLMServer(smollm2.model_folder(), CACHE / "vllm.log", tuple(sys.argv[1:])) as server:
        print(f"{server.url} serves {MODEL_NAME!r}; Ctrl-C ends it. Its log: {server.log}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
