"""Play an environment on a server: its methods run there, and the same trajectory is recorded here.

It needs `pip install 'envsdk[serve]'`.
"""

import re
import subprocess
import sys

import envsdk
from envsdk.adapters import RemoteEnv

NAME = "envsdk/Calculator-v1"

command = [sys.executable, "-m", "envsdk", "serve", NAME, "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    url = re.search(r"http://\S+:\d+", server.stdout.readline())
    assert url is not None
    remote = RemoteEnv(url[0], renderer="qwen3", history="strip")
    there = envsdk.rollout(remote, "reference", seed=0)
    remote.close()
    server.terminate()

here = envsdk.rollout(envsdk.make(NAME, renderer="qwen3", history="strip"), "reference", seed=0)
print(f"reward {there.reward:g} after {len(there.steps)} steps, {there.sampled_tokens} sampled tokens")
print(f"the same record as on this machine: {there.to_json() == here.to_json()}")
