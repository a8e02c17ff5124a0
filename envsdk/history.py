"""History policies: which part of the past stays visible to the model."""

from .contexts.history import DROPPED_IMAGE as DROPPED_IMAGE
from .contexts.history import DROPPED_RESULT as DROPPED_RESULT
from .contexts.history import Budget as Budget
from .contexts.history import Compact as Compact
from .contexts.history import History as History
from .contexts.history import HistoryPolicy as HistoryPolicy
from .contexts.history import Keep as Keep
from .contexts.history import Rewrite as Rewrite
from .contexts.history import Strip as Strip
from .contexts.history import Summarize as Summarize
from .contexts.history import SummaryRequest as SummaryRequest
from .contexts.history import get_history as get_history
