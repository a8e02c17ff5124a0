"""Adapters that convert samples to the input of a trainer, with one module for each trainer.

Each module has a `CAPABILITY`, which specifies whether the trainer takes several samples of a rollout, and how the
adapter treats `Sample.loss_weight`. An adapter does not repair samples: it raises `InvalidSample` for an invalid one.
"""

from .capability import Capability as Capability
from .checks import check_samples as check_samples
from .checks import check_sampling as check_sampling
from .single import OnBreak as OnBreak
from .single import SingleSample as SingleSample
from .single import single_sample as single_sample
