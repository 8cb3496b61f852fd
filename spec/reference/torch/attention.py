"""Attention.  Masks are made inside the Lua expression, so that they are of their type."""
import torch
import torch.nn.functional as F
from common import Family, rand

f = Family(__file__)
sdpa = F.scaled_dot_product_attention


def qkv(*q, kv=None, tk=None, dv=None):
    k = list(q)
    if kv: k[-3] = kv
    if tk: k[-2] = tk
    return rand(*q), rand(*k, seed=1), rand(*k[:-1], dv or k[-1], seed=2)


def visible(*shape):
    """A mask with a pattern that both sides can write: (i * 7) % 5 > 1 over flat positions."""
    n = 1
    for s in shape: n *= s
    return ((torch.arange(n) * 7) % 5 > 1).view(*shape)


def lua_visible(*shape):
    n = 1
    for s in shape: n *= s
    return "((core.arange(%d) * 7) %% 5):gt(1):view(%s)" % (n, ", ".join(map(str, shape)))


case = lambda text, fn, *inputs, **more: f.case("scaled_dot_product_attention",
    "F.scaled_dot_product_attention(%s)" % text, fn, *inputs, **more)
case("x1, x2, x3", sdpa, *qkv(2, 2, 3, 4))
case("x1, x2, x3", sdpa, *qkv(3, 4))
case("x1, x2, x3, { scale = 0.3 }", lambda q, k, v: sdpa(q, k, v, scale=0.3), *qkv(2, 3, 5, tk=2, dv=3))
case("x1, x2, x3, { is_causal = true }", lambda q, k, v: sdpa(q, k, v, is_causal=True), *qkv(1, 2, 5, 4))
case("x1, x2, x3, { is_causal = true }", lambda q, k, v: sdpa(q, k, v, is_causal=True), *qkv(1, 1, 3, 2, tk=5))
case("x1, x2, x3, { is_causal = true }", lambda q, k, v: sdpa(q, k, v, is_causal=True), *qkv(1, 1, 5, 2, tk=3))
case("x1, x2, x3, %s" % lua_visible(2, 1, 3, 4), lambda q, k, v: sdpa(q, k, v, visible(2, 1, 3, 4)),
    *qkv(2, 2, 3, 2, tk=4))
case("x1, x2, x3, %s" % lua_visible(2, 1, 1, 4), lambda q, k, v: sdpa(q, k, v, visible(2, 1, 1, 4)),
    *qkv(2, 2, 3, 2, tk=4))
case("x1, x2, x3, %s" % lua_visible(3, 4), lambda q, k, v: sdpa(q, k, v, visible(3, 4)), *qkv(2, 2, 3, 2, tk=4))
case("x1, x2, x3, x4", lambda q, k, v, m: sdpa(q, k, v, m), *qkv(2, 2, 3, 2, tk=4), rand(2, 1, 3, 4, seed=3))
case("x1, x2, x3, x4:detach()", lambda q, k, v, m: sdpa(q, k, v, m.detach()), *qkv(2, 2, 3, 2, tk=4),
    rand(1, 2, 1, 4, seed=3))
case("x1, x2, x3, { enable_gqa = true }", lambda q, k, v: sdpa(q, k, v, enable_gqa=True), *qkv(2, 4, 3, 2, kv=2))
case("x1, x2, x3, { enable_gqa = true, is_causal = true }",
    lambda q, k, v: sdpa(q, k, v, enable_gqa=True, is_causal=True), *qkv(1, 3, 4, 2, kv=1))
case("x1:transpose(1, 3), x2:transpose(1, 3), x3:transpose(1, 3)",
    lambda q, k, v: sdpa(q.transpose(0, 2), k.transpose(0, 2), v.transpose(0, 2)),
     *qkv(3, 2, 4))
case("x1, x2:expand(2, 2, 4, 3), x3", lambda q, k, v: sdpa(q, k.expand(2, 2, 4, 3), v), rand(2, 2, 4, 3),
    rand(1, 1, 4, 3, seed=1), rand(2, 2, 4, 3, seed=2))
case("x1, x2, x3", sdpa, *qkv(1, 1, 0, 4, tk=3))
case("x1, x2, x3", sdpa, *[t.float() for t in qkv(1, 2, 5, 6)], tolerance=1e-5)
case("x1, x2, x3, { is_causal = true }", lambda q, k, v: sdpa(q, k, v, is_causal=True),
    *[t.float() for t in qkv(1, 1, 50, 3)], tolerance=1e-5)


def split(x, heads):
    b, t, c = x.shape
    return tuple(x.view(b, t, 3, heads, c // (3 * heads)).permute(2, 0, 3, 1, 4))


f.case("split_heads", "x1:split_heads(2)", lambda x: split(x, 2), rand(2, 3, 12))
f.case("split_heads", "F.scaled_dot_product_attention(x1:split_heads(2))", lambda x: sdpa(*split(x, 2)), rand(2, 3, 12))
f.case("split_heads", "(select(2, x1:split_heads(2)))", lambda x: split(x, 2)[1], rand(2, 3, 12))
f.write()
