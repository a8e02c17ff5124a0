"""A program: mini-swe-agent's own agent, prompts and shell, on the repository in a folder.

`python mini_swe_program.py KIND FOLDER` finds the model as `litellm` does, by environment variables.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = sys.argv[2] + "/.git/mswea"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import minisweagent
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_response_model import LitellmResponseModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

CONFIGURATIONS = Path(minisweagent.__file__).parent / "config"
KINDS: dict[str, tuple[Any, str, str]] = {
    "chat": (LitellmModel, "mini.yaml", "openai/m"),
    "text": (LitellmTextbasedModel, "mini_textbased.yaml", "openai/m"),
    "responses": (LitellmResponseModel, "mini.yaml", "openai/m"),
    "anthropic": (LitellmModel, "mini.yaml", "anthropic/m"),
}
TASK = "The mean of [1, 2, 3] should be 2. Repair mean.py, so that test_mean.py passes."


def main(kind: str, folder: str) -> None:
    model_class, file, name = KINDS[kind]
    configuration = yaml.safe_load((CONFIGURATIONS / file).read_text())
    given = {key: value for key, value in configuration["model"].items() if key != "model_name"}
    if kind == "anthropic":
        given["set_cache_control"] = "default_end"
        given["model_kwargs"] = {
            **given.get("model_kwargs", {}),
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "max_tokens": 4000,
        }
    agent = DefaultAgent(
        model_class(model_name=name, **given),
        LocalEnvironment(**{**configuration.get("environment", {}), "cwd": folder}),
        system_template=configuration["agent"]["system_template"],
        instance_template=configuration["agent"]["instance_template"],
        step_limit=9,
        cost_limit=0.0,
    )
    agent.run(TASK)


main(*sys.argv[1:])
