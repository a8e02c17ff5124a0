"""Adapters that convert samples to the input of a trainer, with one module for each trainer.

Each module has a `CAPABILITY`, which specifies whether the trainer takes several samples of a rollout, and how the
adapter treats `Sample.loss_weight`. An adapter does not repair samples: it raises `InvalidSample` for an invalid one.
"""

from .._arguments import explain_arguments
from ._capability import Capability as Capability
from ._checks import check_samples as check_samples
from ._checks import check_sampling as check_sampling
from ._single import OnBreak as OnBreak
from ._single import SingleSample as SingleSample
from ._single import single_sample as single_sample

explain_arguments(globals())
