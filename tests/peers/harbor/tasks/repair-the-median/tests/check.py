import json
import subprocess
import sys
from pathlib import Path


def right(values, median):
    ran = subprocess.run([sys.executable, "/app/median.py", *values], capture_output=True, text=True)
    return float(ran.stdout.strip() == median)


odd, even = right(["3", "1", "2"], "2.0"), right(["4", "1", "3", "2"], "2.5")
rewards = {"reward": min(odd, even), "odd": odd, "even": even}
Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
