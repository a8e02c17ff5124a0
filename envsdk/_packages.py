"""Optional packages, which are imported when they are first used."""

import importlib
from typing import Any

from .errors import MissingPackage


def load(module: str, what: str, advice: str) -> Any:
    """Import a module of an optional package and return it.

    Args:
        module: The module's full name.
        what: The beginning of the error message, up to the verb: `"a batch of tensors needs"`.
        advice: How to install the package.

    Raises:
        MissingPackage: If the package, or one that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(
            f"{what} {error.name or module.partition('.')[0]}, which is not installed: {advice}"
        ) from error
