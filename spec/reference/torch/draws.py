"""Rows of random.def: draws are our own (Philox), so only what is not random can agree."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
f.case("dropout", "F.dropout(x1, { p = 0.5, training = false })", lambda x: F.dropout(x, 0.5, False), rand(3))
f.case("dropout", "F.dropout(x1, { p = 0 })", lambda x: F.dropout(x, 0.0), rand(3))
f.case("dropout", "F.dropout(x1, { p = 1 })", lambda x: F.dropout(x, 1.0), rand(3))
f.case("_arange", "tensor.arange(2, 8, 3)", lambda: torch.arange(2, 8, 3))
f.write()
