"""Tree batches: samples that share prefixes as one sequence, in which each shared token stands once.

A forward pass over the tree, with `position_ids` and a mask that shows each token its own branch, gives at every
trained token what the separate samples give, for `len(tree)` tokens instead of `tree.tokens_separate`.
"""

from .batch import Reduction as Reduction
from .batch import TreeBatch as TreeBatch
from .batch import tree_batch as tree_batch
from .builder import TreeSample as TreeSample
from .masks import check_model as check_model
