# Writes print_reference.lua: what PyTorch prints.  Run it where torch is installed:
#   python3 spec/support/gen_print_reference.py > spec/support/print_reference.lua
import math
import sys

import torch

cases=[]
def add(expr_lua, t): cases.append((expr_lua, str(t)))
def lua(v):
    if isinstance(v,list): return "{"+",".join(lua(x) for x in v)+"}"
    if isinstance(v,bool): return "true" if v else "false"
    if isinstance(v,float):
        if math.isnan(v): return "0/0"
        if math.isinf(v): return "1/0" if v>0 else "-1/0"
        return repr(v)
    return repr(v)
def T(v,dtype=None):
    t = torch.tensor(v,dtype=dtype) if dtype else torch.tensor(v, dtype=None)
    name = str(t.dtype).replace("torch.","")
    add(f"T({lua(v)}, {{dtype='{name}'}})", t)
T([1.,2.,3.]); T([[1.,2.],[3.,4.]]); T([1.5,2.25,-3.125]); T([1e-5,1.]); T([1e9,1.]); T([1e8]); T([100000.5]); T([0.,0.]); T([float('nan'),1.]); T([float('inf'),-float('inf'),2.5])
T([float('nan')]); T([-0.0,1.0]); T(3.5); T(7.0); T(1e-10); T(5); T(True); T([True,False]); T([[True],[False]]); T([1,2,3]); T([[1,-200],[3,4]]); T([1,2],torch.int32); T([1,255],torch.uint8)
T([1.5,2],torch.float64); T([1.5,1000.25],torch.float16); T([1.5,1e-3],torch.bfloat16); T([]); T([[],[]]); T([9007199254740992]) ; T([1e38,1e-38]); T([0.1,0.2,0.3333333])
T([[[1.,2.],[3.,4.]],[[5.,6.],[7.,8.5]]]); T([0.001,1.0,10.0]); T([0.0001,0.1]); T([1234567.0,1.0]); T([12345.678])
T([], torch.int32)
for shape in [(1000,),(1001,),(50,50),(7,200),(3,4,100),(2,3,4),(6,300),(11,10,10),(2,2,2,2),(40,),(5,30)]:
    n=math.prod(shape)
    t=torch.arange(n).view(shape); add(f"A({n}):view({{{','.join(map(str,shape))}}})", t)
    add(f"A({n}):float():view({{{','.join(map(str,shape))}}}):mul(0.37)", t.float()*0.37)
    add(f"A({n}):double():view({{{','.join(map(str,shape))}}})", t.double())
add("tensor.zeros(0,3)", torch.zeros(0,3)); add("tensor.zeros(2,0,{dtype='int64'})", torch.zeros(2,0,dtype=torch.int64))
add("T({1,2},{requires_grad=true})", torch.tensor([1.,2.],requires_grad=True))
add("tensor.ones(3,2,{dtype='float64',requires_grad=true})", torch.ones(3,2,dtype=torch.float64,requires_grad=True))
add("tensor.full({12},0.123456789,{dtype='float64',requires_grad=true})", torch.full((12,),0.123456789,dtype=torch.float64,requires_grad=True))
add("tensor.full({8},0.123456789,{dtype='float64',requires_grad=true})", torch.full((8,),0.123456789,dtype=torch.float64,requires_grad=True))
out = sys.stdout
out.write("-- What PyTorch prints (torch %s), written by a script: pairs of an expression and a text. dtype names lack \"torch.\", sizes are ours.\nreturn {\n" % torch.__version__.split("+")[0])
for e,s in cases:
    s=s.replace("torch.","")
    out.write("  { %s,\n    %s },\n" % ('"'+e+'"', "[=[\n"+s+"]=]"))
out.write("}\n")
