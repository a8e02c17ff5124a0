"""The import of the trainers' own packages, when they are used."""

import importlib
from typing import Any

from ..errors import MissingPackage


def load(module: str, page: str) -> Any:
    """Import a module of a trainer.

    Args:
        module: The full name of the module.
        page: The name of the page in docs/trainers that explains how to install it.

    Raises:
        MissingPackage: If it cannot be imported. The error names the missing package and the page.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = f"{error.name} is not installed" if isinstance(error, ModuleNotFoundError) else str(error)
        raise MissingPackage(f"{module} cannot be imported: {missing}; see docs/trainers/{page}.md") from error


def load_if_installed(module: str) -> Any:
    """Import a module that has the base classes of an adapter. Return None if its package is not installed.

    Raises:
        ImportError: If the package is installed, but one of its dependencies is not.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            return None
        raise
