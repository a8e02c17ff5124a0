"""Tree batches: samples that share prefixes, packed into one sequence that stores each shared token once.

A forward pass over the tree uses `position_ids` and a mask that lets each token attend to its own branch only. At every
trained token it computes the same log-probability as the separate samples, over `len(tree)` tokens instead of
`tree.tokens_separate`.
"""

from .._arguments import explain_arguments
from ._batch import TreeBatch as TreeBatch
from ._batch import tree_batch as tree_batch
from ._builder import TreeSample as TreeSample
from ._masks import check_model as check_model
from ._run_attention import tree_attention as tree_attention

explain_arguments(globals())
