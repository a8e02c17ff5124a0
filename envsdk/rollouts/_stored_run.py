"""Reads a run folder, on any machine: it holds the tokenizer and the chat template that its tokens need."""

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .._registry import get_renderer
from ..errors import EnvsdkError, InvalidRecord, RunFolderError
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..trajectories._media import MEDIA
from ..trajectories._trajectory import Trajectory
from ._journal import read_batches
from ._recovery import difference_from_manifest
from ._run_description import Manifest, RunDescription

_log = logging.getLogger(__name__)


class StoredRun:
    """A run folder that is read. It may still be written: what is not complete yet is left out.

    Args:
        path: The folder.

    Raises:
        RunFolderError: If it is not a run folder, or its `run.json` or `manifest.json` is damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            description = RunDescription.read(self.path)
            manifest = Manifest.read(self.path)
        except OSError as error:
            raise RunFolderError(f"{str(self.path)!r} cannot be read: {error}. Expected a run folder") from error
        if description is None:
            raise RunFolderError(
                f"{str(self.path)!r} is not a run folder: it has no {RunDescription.file_name}. Expected a folder that "
                "a run with out=... wrote"
            )
        self.description = description
        """What the run was configured with, and on what it ran."""
        self.manifest = manifest
        """What was stored when the manifest was last written; None if it is missing."""
        if manifest is None:
            _log.warning("%s has no %s, so its trajectories are not verified", self.path, Manifest.file_name)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """What the caller of the run gave."""
        return self.description.configuration

    def trajectories(self, *, check: bool = True) -> Iterator[Trajectory]:
        """Read the trajectories, in the order in which the episodes ended.

        Args:
            check: Whether to compare the file with the length and the checksum in `manifest.json` before it is read.
                False reads what can be read of a file that was cut or changed.

        Raises:
            RunFolderError: If the file was cut or changed, or a line is damaged; the message names it.
        """
        file, number, stop = self.path / self.description.trajectories, 0, 0
        try:
            if check and self.manifest is not None and (difference := difference_from_manifest(file, self.manifest)):
                left = sum(1 for _ in self.trajectories(check=False)) if file.exists() else 0
                raise RunFolderError(
                    f"{difference}, or read the {left} episodes that it has: trajectories(check=False)"
                )
            for batch in read_batches(file, inside=self.path):
                for line in batch.lines:
                    number += 1
                    yield Trajectory.from_json(line, media=self.path / MEDIA)
                stop = batch.stop
            is_running = self.manifest is not None and not self.manifest.is_complete
            if not is_running and file.stat().st_size > stop:
                _log.warning("%s ends with %d bytes of a line that was cut off", file, file.stat().st_size - stop)
        except InvalidRecord as error:
            raise RunFolderError(f"{file}, line {number}: {error}") from error
        except OSError as error:
            raise RunFolderError(f"{file} cannot be read: {error}") from error

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the environment's renderer. It needs neither that renderer nor the environment."""
        return self._tokenizer(next(iter(self.description.renderers.values())).folder)

    @property
    def renderer(self) -> Renderer:
        """The environment's renderer."""
        return next(iter(self.renderers.values()))

    @cached_property
    def renderers(self) -> Mapping[str, Renderer]:
        """The renderer of each role.

        Raises:
            UnknownName: If no renderer of that name is installed.
            TokenizerError: If the files of a tokenizer are damaged.
            RunFolderError: If the options of a renderer are damaged.
        """
        made: dict[str, Renderer] = {}
        for role, stored in self.description.renderers.items():
            options = dict(stored.specification)
            options.pop("processor", None)  # what is stored was rendered; the model's files may not be here
            try:
                made[role] = get_renderer(options.pop("name", None), self._tokenizer(stored.folder), **options)
            except EnvsdkError:
                raise
            except (TypeError, ValueError, LookupError, AttributeError) as error:  # options of other types
                raise RunFolderError(
                    f"the renderer of {role!r} in {str(self.path)!r} cannot be made of {stored.specification!r:.200}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return made

    @cached_property
    def tokenizers(self) -> Mapping[str, Tokenizer]:
        """Each tokenizer by its fingerprint."""
        folders = {stored.tokenizer: stored.folder for stored in self.description.renderers.values()}
        return {fingerprint: self._tokenizer(folder) for fingerprint, folder in folders.items()}

    def tokenizer_of(self, trajectory: Trajectory, context: str | None = None) -> Tokenizer:
        """Return the tokenizer of an episode, or of one of its contexts.

        Raises:
            RunFolderError: If the folder does not have it.
        """
        own = "" if context is None else trajectory.contexts[context].tokenizer
        fingerprint = own or trajectory.tokenizer
        if fingerprint not in self.tokenizers:
            raise RunFolderError(
                f"{str(self.path)!r} does not have the tokenizer {fingerprint} of {trajectory.id!r}, context "
                f"{context!r}; it has {', '.join(self.tokenizers)}"
            )
        return self.tokenizers[fingerprint]

    def _tokenizer(self, folder: str) -> Tokenizer:
        if not (self.path / folder).resolve().is_relative_to(self.path.resolve()):
            raise RunFolderError(f"{str(self.path / folder)!r} is a link to a folder outside of the run folder")
        return load_tokenizer(self.path / folder)

    def __repr__(self) -> str:
        count = "" if self.manifest is None else f", {self.manifest.episodes} episodes"
        return f"<StoredRun {str(self.path)!r}{count}>"
