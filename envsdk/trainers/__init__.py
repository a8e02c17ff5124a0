"""Adapters: from samples to what a trainer takes, one module for each trainer. They convert, and do no logic.

Each module has a `CAPABILITY`, which says whether the trainer takes several samples of a rollout, and what becomes of
`Sample.loss_weight`. Nothing is padded or repaired: a sample that is not sound is refused.
"""

from .capability import Capability as Capability
from .checks import check_sampling as check_sampling
from .checks import checked as checked
from .single import OnBreak as OnBreak
from .single import Single as Single
from .single import single_sample as single_sample
