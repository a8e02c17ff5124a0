"""Repositories with a mistake: each mistake is one, and only a repair is rewarded."""

import json
import subprocess
import sys

import pytest
from envsdk_environments._repo_fix import RepoFix
from envsdk_environments._repo_fix._programs import CAUGHT, EXPRESSIONS, mutated, mutations_of, source_of, values_of

import envsdk
from envsdk import Message, errors, sandbox

JUDGE = """
import json, os, resource, signal, sys
expressions, sources = json.load(sys.stdin)
for source in sources:
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            print("null", flush=True)
        continue
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    signal.setitimer(signal.ITIMER_PROF, 2.0)
    values, namespace = [], {}
    exec(source, namespace)
    for expression in expressions:
        try:
            values.append(repr(eval(expression, namespace)))
        except Exception as error:
            values.append(type(error).__name__)
    print(json.dumps(values), flush=True)
    os._exit(0)
"""
CHEATS = {
    "end early": "import os\nos._exit(0)\n",
    "print nothing": "import sys\nsys.exit(0)\n",
    "equal to all": "class E:\n    def __repr__(self): return ''\ndef merge(*_): return E()\n",
    "nothing": "",
    "a comparison that is always true": "__builtins__['repr'] = lambda _: ''\n",
}


@pytest.fixture(scope="module", autouse=True)
def _is_available():
    try:
        sandbox.check_isolation()
    except errors.SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_each_mistake_changes_a_value_that_a_visible_test_checks(name: str):
    sources = [mutated(name, mutations_of(name)[number]) for number in CAUGHT[name]]
    job = json.dumps([EXPRESSIONS[name], [source_of(name), *sources]])
    ran = subprocess.run((sys.executable, "-S", "-c", JUDGE), input=job, capture_output=True, text=True, check=True)
    right, *wrong = map(json.loads, ran.stdout.splitlines())
    assert right == [*values_of(name)]
    visible = len(right) // 2
    assert len(wrong) == len(CAUGHT[name]) and all(values and values[:visible] != right[:visible] for values in wrong)


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_the_reference_repairs_and_the_null_policy_does_not(size: str, is_full: bool):
    env = envsdk.make("envsdk/RepoFix-v0", renderer="qwen3", tokenizer="embedded", size=size)
    seeds = range(3 if is_full else 1)
    rewards = [envsdk.rollout(env, policy, seed=seed).reward for policy in ("reference", "null") for seed in seeds]
    env.close()
    assert rewards == [1.0] * len(seeds) + [0.0] * len(seeds)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_program_that_cheats_its_grader_is_not_rewarded(cheat: str):
    class Cheating(RepoFix):
        def reference_reply(self) -> Message:
            assert self.box is not None
            if any(message.role == "assistant" for message in self.messages()):
                return Message(role="assistant", content="Done.")
            arguments = {"path": f"{self.mistake.program}.py", "content": CHEATS[cheat]}
            return Message.calling("write_file", arguments)

    env = Cheating(renderer="qwen3", tokenizer="embedded")
    assert envsdk.rollout(env, "reference", seed=0).reward == 0.0
    env.close()


def test_no_mistake_is_in_both_splits():
    found: dict[str, set[object]] = {}
    for split in ("train", "test"):
        env = RepoFix(renderer="qwen3", tokenizer="embedded", split=split)
        for seed in range(20):
            env.reset(seed=seed)
            found.setdefault(split, set()).add(env.mistake)
        env.close()
    assert not found["train"] & found["test"]
