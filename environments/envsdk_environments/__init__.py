"""The environments that come with envsdk. Importing this package registers them; each module loads on first use."""

from envsdk import register_env
from envsdk._arguments import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

register_env("envsdk/Calculator-v1", "envsdk_environments._calculator:Calculator")
register_env("envsdk/ChainArithmetic-v1", "envsdk_environments._chain_arithmetic:ChainArithmetic")
register_env("envsdk/ChartReader-v0", "envsdk_environments._chart_reader:ChartReader")
register_env("envsdk/CorpusSearch-v1", "envsdk_environments._corpus_search:CorpusSearch")
register_env("envsdk/CropZoom-v1", "envsdk_environments._crop_zoom:CropZoom")
register_env("envsdk/Delegate-v1", "envsdk_environments._delegate:Delegate")
register_env("envsdk/GridScreen-v1", "envsdk_environments._grid_screen:GridScreen")
register_env("envsdk/GuessNumber-v1", "envsdk_environments._guess_number:GuessNumber")
register_env("envsdk/KuhnPoker-v1", "envsdk_environments._kuhn_poker:KuhnPoker")
register_env("envsdk/LongErrand-v0", "envsdk_environments._long_errand:LongErrand")
register_env("envsdk/LongNotes-v1", "envsdk_environments._long_notes:LongNotes")
register_env("envsdk/MathChat-v0", "envsdk_environments._math_chat:MathChat")
register_env("envsdk/PythonSandbox-v1", "envsdk_environments._python_sandbox:PythonSandbox")
register_env("envsdk/RepoFix-v0", "envsdk_environments._repo_fix:RepoFix")
register_env("envsdk/RetailDesk-v1", "envsdk_environments._retail_desk:RetailDesk")
register_env(
    "envsdk/RetailDeskLLMUser-v1",
    "envsdk_environments._retail_desk:RetailDesk",
    kwargs={"user": "policy"},
    nondeterministic=True,
)
register_env("envsdk/SearchInline-v1", "envsdk_environments._search_inline:SearchInline")
register_env("envsdk/SqlAnalyst-v1", "envsdk_environments._sql_analyst:SqlAnalyst")
register_env("envsdk/WordGuess-v1", "envsdk_environments._word_game:WordGuess")
