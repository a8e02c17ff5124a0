"""The rows of TRL's AsyncGRPOTrainer, and the versions that take them: all that `trl_async` knows of TRL's insides.

Source: TRL 1.16.0, `trl.experimental.async_grpo`, and the release notes of TRL 1.18.0. The trainer's constructor takes
a `rollout_worker` and a `weight_transfer`, and its queue takes records of the class `RolloutSample`. It packs rows as
prefix tries: a token is computed once for all rows that begin with the same tokens, and trained in each row that trains
it. It fills a batch in the order of the queue, so rows that share tokens must be adjacent.
"""

import importlib.metadata
import re
from typing import Any

import numpy as np

from ..errors import InvalidSample, MissingPackage
from ..trajectories._samples import Sample
from ._checks import check_samples
from ._packages import load
from ._rows import advantages, logprobs

TRAINER = "TRL's AsyncGRPOTrainer"
_OLDEST, _FIRST_WITHOUT, _RUN = (1, 16), (1, 18), "1.16.0"
_NO_IMAGES = "the rows of TRL's AsyncGRPOTrainer have no field for images: use GRPOTrainer with tree_trainer()"


def check_version() -> None:
    """Check that AsyncGRPOTrainer of the installed TRL takes a worker and its rows; accept if TRL is not installed.

    Raises:
        MissingPackage: If it does not. The error lists the versions that do.
    """
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not _OLDEST <= numbers < _FIRST_WITHOUT:
        raise MissingPackage(
            f"TRL {version} is installed, but RolloutWorker needs TRL 1.16 or 1.17 (it was run with {_RUN}): earlier "
            f"versions take other rows, and 1.18 removed the arguments rollout_worker and weight_transfer of {TRAINER}:"
            " pip install 'trl>=1.16,<1.18'; see docs/trainers/trl.md"
        )


def row_class() -> Any:
    """Return TRL's class of a row.

    Raises:
        MissingPackage: If TRL, or a package that it imports for this class, is not installed, or the version is not
            one that `check_version` accepts.
    """
    check_version()
    return load("trl.experimental.async_grpo.async_rollout_worker", "trl").RolloutSample


def to_fields(
    sample: Sample, *, group_id: int, model_version: int = 0, temperature: float | None = None
) -> dict[str, Any]:
    """Return the fields of TRL's `RolloutSample`, except the messages, which TRL only displays.

    Args:
        sample: A sample with log-probabilities and an advantage.
        group_id: A unique number of the group of rollouts.
        model_version: The version of the weights, for a policy that does not report it in its actions.
        temperature: The temperature by which the trainer divides logits, which must be that of the sample. None skips
            the check.

    Raises:
        InvalidSample: If the sample is invalid, has no log-probabilities or no advantage, was sampled at another
            temperature, or has different advantages for its tokens, because a row has one.
    """
    (sample,) = check_samples([sample], advantage=True, temperature=temperature, no_images=_NO_IMAGES)
    found = np.unique(advantages(sample)[sample.mask])
    if len(found) > 1:
        raise InvalidSample(
            f"trajectory {sample.trajectory_id!r} has {len(found)} advantages in one sample, but {TRAINER} takes one: "
            "use envsdk.credit.group_advantages"
        )
    versions = sample.policy_version[sample.policy_version >= 0]
    return {
        "input_ids": sample.tokens.astype(np.int64),
        "completion_mask": sample.mask.astype(np.int64),
        "old_log_probs": logprobs(sample),
        "advantage": float(found[0]),
        "model_version": int(versions.min()) if len(versions) else model_version,
        "group_id": group_id,
        "metrics": {"sample/reward": float(sample.reward)},
    }
