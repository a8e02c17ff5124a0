"""The trainers' own packages, which are imported when they are used."""

import importlib
from typing import Any

from ..errors import MissingPackage


def load(module: str, page: str) -> Any:
    """Import a module of a trainer.

    Args:
        module: Its full name.
        page: The page of docs/trainers that says how to install it.

    Raises:
        MissingPackage: It names what, and the page.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = f"{error.name} is not installed" if isinstance(error, ModuleNotFoundError) else str(error)
        raise MissingPackage(f"{module} cannot be imported: {missing}; see docs/trainers/{page}.md") from error


def load_if_installed(module: str) -> Any:
    """Import a module of a trainer whose classes ours are based on; None if its package is not installed.

    Raises:
        ImportError: If the package is there, and something that it needs is not.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            return None
        raise
