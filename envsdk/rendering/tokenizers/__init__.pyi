from .chat_template import ChatTemplateSource as ChatTemplateSource
from .kinds import HuggingFaceTokenizer as HuggingFaceTokenizer
from .kinds import TiktokenTokenizer as TiktokenTokenizer
from .load import DATA as DATA
from .load import load_tokenizer as load_tokenizer
from .load import local_tokenizer as local_tokenizer
from .protocol import UNNAMED as UNNAMED
from .protocol import Tokenizer as Tokenizer
