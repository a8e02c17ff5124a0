"""The private attributes of libraries that our code reads: each is in a list, still exists, and its library is bounded.

A library may change a private attribute in any release. So a new release of these libraries has to pass this file
before pyproject.toml admits it.
"""

import ast
import importlib.util
import re
import tomllib
from collections import namedtuple
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import pytest
import tiktoken

ROOT = Path(__file__).parents[2]
FOLDERS = ("envsdk", "renderers", "environments", "examples", "scripts")
PRIVATE = re.compile(r"_[a-z]\w*")
OF_PYTHON = {
    "_base_executable",
    "_exit",
    "_get_running_loop",
    "_processes",
    *(name for name in dir(namedtuple("_", ())) if PRIVATE.fullmatch(name)),
}
"""Those of the standard library, which `requires-python` bounds."""


class Private(NamedTuple):
    """A private attribute of a library."""

    library: str
    attribute: str
    exists: Callable[[], bool]


def tiny_encoding() -> tiktoken.Encoding:
    return tiktoken.Encoding("tiny", pat_str=r"\w", mergeable_ranks={b"a": 0}, special_tokens={})


def attention_of_a_configuration() -> str | None:
    transformers: Any = importlib.import_module("transformers")
    return transformers.PretrainedConfig(attn_implementation="eager")._attn_implementation


def mamba_is_stateful() -> bool:
    spec = importlib.util.find_spec("transformers.models.mamba2.modeling_mamba2")  # importing it needs torch
    return spec is not None and "_is_stateful = True" in Path(str(spec.origin)).read_text(encoding="utf-8")


LISTED = (
    Private("tiktoken", "_mergeable_ranks", lambda: tiny_encoding()._mergeable_ranks == {b"a": 0}),
    Private("tiktoken", "_encode_single_piece", lambda: tiny_encoding()._encode_single_piece("a") == [0]),
    Private("tiktoken", "_pat_str", lambda: tiny_encoding()._pat_str == r"\w"),
    Private("gymnasium", "_np_random", lambda: gymnasium.Env._np_random is None),
    Private("gymnasium", "_np_random_seed", lambda: gymnasium.Env._np_random_seed is None),
    Private("transformers", "_attn_implementation", lambda: attention_of_a_configuration() == "eager"),
    Private("transformers", "_is_stateful", mamba_is_stateful),
)
OF_TORCH = {
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_version",
}
"""The extra pins torch; tests/with_torch fail without them (test_transformers_policy.py, test_path_attention.py)."""
OF_HARBOR = {"_merge_env"}
"""Environments that derive from Harbor's base class call it; tests/peers/harbor fail without it."""
OF_PETTINGZOO = {"_accumulate_rewards", "_clear_rewards", "_deads_step_first", "_was_dead_step"}
"""Environments that derive from `AECEnv` call these, as its documentation says; tests/peers/games fail without them."""
OF_VERIFIERS = {"_call_state"}
"""The state that tools of verifiers see; tests/peers/verifiers fail without it."""


def exists(private: Private) -> bool:
    try:
        return private.exists()
    except AttributeError:
        return False


@pytest.mark.parametrize("private", LISTED, ids=lambda private: f"{private.library}.{private.attribute}")
def test_the_private_attributes_that_we_read_exist(private: Private):
    installed = f"{private.library} {version(private.library)}"
    assert exists(private), (
        f"{installed} no longer has {private.attribute!r} as envsdk reads it (`git grep {private.attribute}`): read it "
        f"in another way, or exclude this version with the upper bound of {private.library} in pyproject.toml"
    )


@pytest.mark.parametrize("library", sorted({private.library for private in LISTED} | {"torch"}))
def test_a_library_whose_private_attributes_we_read_has_an_upper_bound_wherever_we_require_it(library: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [line for group in groups for line in group if re.match(rf"{library}\b", line)]
    assert wanted
    assert all("<" in line or "==" in line for line in wanted), (
        f"envsdk reads private attributes of {library}, so pyproject.toml needs an upper bound: {wanted}"
    )


def names(source: str) -> tuple[set[str], set[str]]:
    """Return the private attributes that a module reads of other objects, and the private names that it defines."""
    read: set[str] = set()
    defined: set[str] = set()
    kinds = (ast.Attribute, ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.Name, ast.keyword)
    for node in (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if not isinstance(node.ctx, ast.Load):
                defined.add(name)
            case ast.Attribute(attr=name) | ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(name), *_]):
                read.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.keyword(arg=str(name)):
                defined.add(name)
            case _:
                pass
    return {name for name in read if PRIVATE.fullmatch(name)}, defined


def test_every_private_attribute_of_a_library_that_we_read_is_in_the_list():
    modules = [names(file.read_text(encoding="utf-8")) for name in FOLDERS for file in (ROOT / name).rglob("*.py")]
    read, defined = (set[str]().union(*parts) for parts in zip(*modules, strict=True))
    foreign = read - defined - OF_PYTHON - OF_TORCH - OF_HARBOR - OF_PETTINGZOO - OF_VERIFIERS
    listed = {private.attribute for private in LISTED}
    assert foreign <= listed, (
        f"envsdk reads {sorted(foreign - listed)}, which it does not define: use the library's public names, or add "
        "them to LISTED and an upper bound to pyproject.toml"
    )
