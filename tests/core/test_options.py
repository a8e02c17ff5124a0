"""An option has one name and one default: in every command, and in Python."""

import inspect
from collections import defaultdict
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from envsdk import errors
from envsdk.cli import app
from envsdk.cli._options import policy_options
from envsdk.diagnostics import estimate
from envsdk.diagnostics._plans import plan
from envsdk.diagnostics._stack import check_stack
from envsdk.rollouts import Rollouts, break_values, rollout_many
from envsdk.rollouts.evaluation import Suite
from envsdk.testing import check_env
from envsdk.trainers.trl import RolloutFunc

COMMANDS: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]
IN_PYTHON = {"rollout": Rollouts, "check": check_env, "cost": estimate, "onpolicy": check_stack, "plan": plan}
MAKES_AN_ENVIRONMENT = ("rollout", "eval", "check", "play", "cost", "card", "onpolicy", "serve", "export")
OF_A_MODEL = ("gateway", "doctor", "export-template", "import", "onpolicy")
"""Commands whose renderer and tokenizer are a model's, not the environment's."""
OF_A_SERVER = ("port", "max_sessions", "idle_timeout_s")
"""Options of `gateway` and `serve`, whose sessions are a program's and an environment's."""


def defaults_of(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in found if one.default is not one.empty}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_an_option_of_a_command_has_the_name_and_the_default_that_it_has_in_python(name: str) -> None:
    python = defaults_of(IN_PYTHON[name])
    given = {one.name: one.default for one in COMMANDS[name].params}
    same = python.keys() & given.keys() - {"policy", "env", "progress", "history", "seeds", "max_retries"}
    assert {key: given[key] for key in same} == {key: python[key] for key in same}
    assert not {"episodes", "samples", "concurrency", "retries", "timeout"} & (python.keys() | given.keys())


def test_an_option_has_one_default_in_all_commands() -> None:
    found = defaultdict[str, set[str]](set)
    for command, one in COMMANDS.items():
        for option in one.params:
            if option.param_type_name == "option" and not option.required and not option.multiple:
                is_model = option.name in ("renderer", "tokenizer", "history") and command in OF_A_MODEL
                if not is_model and option.name not in ("out", *OF_A_SERVER):
                    found[option.name].add(repr(option.default))
    assert {name: defaults for name, defaults in found.items() if len(defaults) > 1} == {}
    assert found["seeds"] == {"'16'"} and found["group_size"] == {"1"} and found["max_concurrency"] == {"64"}
    suite = Suite.model_fields
    assert (suite["seeds"].default, suite["group_size"].default) == (16, 1)
    assert {defaults_of(one)["max_concurrency"] for one in (Rollouts, rollout_many, break_values, RolloutFunc)} == {64}
    assert {defaults_of(one)["seeds"] for one in (check_env, check_stack, estimate)} == {16}


@pytest.mark.parametrize("name", MAKES_AN_ENVIRONMENT)
def test_every_command_that_makes_an_environment_takes_its_options(name: str) -> None:
    options = {word for one in COMMANDS[name].params for word in one.opts}
    assert {"--renderer", "--tokenizer", "--history", "--tasks", "--option"} <= options


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("rollout x --episodes 3", "'--seeds'"),
        ("rollout x --concurrency=3", "'--max-concurrency'"),
        ("rollout x --retries 0", "'--max-retries'"),
        ("eval x --samples 4", "'--group-size'"),
        ("eval x --compare runs/a", "'--against'"),
        ("check x --seed 4", "'--seeds'"),
        ("plan runs/a --limit 400", "'--max-context-tokens'"),
        ("onpolicy --env x --policy a --model b", "'ENV'"),
        ("gateway --policy a --timeout 3", "'--policy-timeout-s'"),
    ],
)
def test_an_old_name_is_an_error_that_names_the_new_one(words: str, new: str) -> None:
    result = CliRunner().invoke(app, words.split())
    assert isinstance(result.exception, errors.UnknownName)
    assert f"Did you mean {new}?" in str(result.exception)


def test_an_old_name_in_a_suite_is_an_error_that_names_the_new_one() -> None:
    with pytest.raises(errors.UnknownName, match=r"No field of Suite is named 'samples'\. Did you mean 'group_size'\?"):
        Suite.model_validate({"samples": 4})


@pytest.mark.parametrize("seeds", [3, "3", "0:3", range(3), [0, 1, 2]])
def test_seeds_are_a_number_or_a_sequence(seeds: Any) -> None:
    assert [one.seed for one in rollout_many("envsdk/GuessNumber-v1", "null", seeds=seeds)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        (Rollouts, "concurrency", "max_concurrency"),
        (Rollouts, "samples", "group_size"),
        (rollout_many, "make_env", "env"),
        (check_env, "first_seed", "seeds"),
        (estimate, "episodes", "seeds"),
    ],
)
def test_an_old_name_in_python_is_an_error_that_names_the_new_one(function: Any, old: str, new: str) -> None:
    with pytest.raises(errors.ConfigError, match=rf"has no argument '{old}'\. Did you mean {new}\?"):
        function("envsdk/GuessNumber-v1", **{old: 4})


def test_the_name_of_a_server_s_model_is_given_once() -> None:
    assert policy_options(None, ["model=small"]) == policy_options("small", None) == {"model": "small"}
    with pytest.raises(errors.ConfigError, match="both name the model; give one of them"):
        policy_options("small", ["model=small"])
