"""Rows of copy.def.  (A file called copy.py would hide the standard module of that name.)"""
import torch
from common import Family, rand

f = Family(__file__)
f.case("clone", "x1:transpose(1, 2):clone()", lambda x: x.transpose(0, 1).clone(), rand(2, 3))
f.case("clone", "x1:clone()", torch.clone, torch.zeros(0, 2))
f.case("_cast", 'x1:to("int64")', lambda x: x.long(), torch.tensor([2.7, -2.7, 0.0]), grad=False)
f.case("_cast", 'x1:to("float64")', lambda x: x.double(), torch.tensor([3, -2]))
f.case("_cast", 'x1:to("bool")', lambda x: x.bool(), torch.tensor([3.0, 0.0]), grad=False)
f.case("_copy", "tensor.zeros({ 2, 3 }, { dtype = 'float64' }):copy_(x1)", lambda x: torch.zeros(2, 3).copy_(x),
    rand(3))
f.write()
