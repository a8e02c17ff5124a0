"""Packages that not everybody has, which are imported when they are used."""

import importlib
from typing import Any

from .errors import MissingPackage


def load(module: str, what: str, advice: str) -> Any:
    """Import a module of such a package.

    Args:
        module: Its full name.
        what: What needs it, with its verb: `"a batch of tensors needs"`.
        advice: How to install it.

    Raises:
        MissingPackage: It names what is not installed, and the advice.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(
            f"{what} {error.name or module.partition('.')[0]}, which is not installed: {advice}"
        ) from error
