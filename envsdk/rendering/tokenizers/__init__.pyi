from ._chat_template import ChatTemplateSource as ChatTemplateSource
from ._fast import FastokensTokenizer as FastokensTokenizer
from ._kinds import HuggingFaceTokenizer as HuggingFaceTokenizer
from ._kinds import TiktokenTokenizer as TiktokenTokenizer
from ._load import load_tokenizer as load_tokenizer
from ._protocol import Tokenizer as Tokenizer
