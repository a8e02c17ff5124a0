"""History policies: which part of the past stays visible to the model."""

from ._arguments import explain_arguments
from .contexts._history import Budget as Budget
from .contexts._history import Compact as Compact
from .contexts._history import History as History
from .contexts._history import HistoryPolicy as HistoryPolicy
from .contexts._history import Keep as Keep
from .contexts._history import Planned as Planned
from .contexts._history import Rewrite as Rewrite
from .contexts._history import Strip as Strip
from .contexts._history import Summarize as Summarize
from .contexts._history import SummaryRequest as SummaryRequest

explain_arguments(globals())
