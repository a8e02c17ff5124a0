"""Harmony's conversations that are written by hand, with the module of oss-harmony, which vLLM requires."""

import importlib.metadata

from renderers.test_harmony_texts import *  # noqa: F403


def test_both_packages_are_installed_and_the_module_is_that_of_oss_harmony() -> None:
    assert importlib.metadata.version("openai-harmony")
    (library,) = [file for file in importlib.metadata.files("oss-harmony") or () if file.name.endswith(".abi3.so")]
    assert library.locate().stat().st_size == library.size
