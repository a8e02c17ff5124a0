"""Play a task of Harbor's with its own solution, and with no attempt: `python examples/harbor_task.py FOLDER`."""

import sys

import envsdk
from envsdk.adapters import HarborTask

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    env = HarborTask(tasks=sys.argv[1], only_supported=True)
    for name in env.tasks or ():
        rewards = [
            envsdk.rollout(env, policy, seed=0, options={"task": name}).reward for policy in ("reference", "null")
        ]
        print(f"{name}: the solution earns {rewards[0]}, no attempt {rewards[1]}")
    env.close()
