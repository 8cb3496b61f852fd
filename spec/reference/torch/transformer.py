"""Modules: attention with several heads and transformer layers.  Parameters follow a pattern
(filled.lua), so that only inputs are stored."""
import torch
from torch import nn
from common import Family, rand

f = Family(__file__)
torch.backends.mha.set_fastpath_enabled(False)


def filled(module):
    module = module.double().eval()
    with torch.no_grad():
        for k, (_, p) in enumerate(module.named_parameters(), 1):
            p.copy_((((torch.arange(p.numel()) * 37 + 11 * k) % 101 - 50).double() / 120).view(p.shape))
    return module


def case(row, made, call, module, fn, *inputs):
    f.case(row, '(require "spec.reference.torch.filled")(nn.%s)(%s)' % (made, call), lambda *x: fn(filled(module), *x),
        *inputs)


MHA = nn.MultiheadAttention
hidden = ((torch.arange(2 * 4) * 7) % 5 > 2).view(2, 4)
HIDDEN = "((core.arange(8) * 7) % 5):gt(2):view(2, 4)"
square = ((torch.arange(3 * 4) * 5) % 7 > 4).view(3, 4)
SQUARE = "((core.arange(12) * 5) % 7):gt(4):view(3, 4)"
each = ((torch.arange(4 * 3 * 4) * 5) % 7 > 4).view(4, 3, 4)
EACH = "((core.arange(48) * 5) % 7):gt(4):view(4, 3, 4)"
q, k, v = rand(3, 2, 4), rand(4, 2, 4, seed=1), rand(4, 2, 4, seed=2)

case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x1, x1", MHA(4, 2), lambda m, x: m(x, x, x), q)
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x1, x1, { need_weights = false }", MHA(4, 2),
    lambda m, x: m(x, x, x, need_weights=False)[0], q)
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x2, x3, { average_attn_weights = false }", MHA(4, 2),
     lambda m, q, k, v: m(q, k, v, average_attn_weights=False), q, k, v)
case("MultiheadAttention", "MultiheadAttention(4, 2, { bias = false })", "x1, x2, x2", MHA(4, 2, bias=False),
    lambda m, q, k: m(q, k, k), q, k)
case("MultiheadAttention", "MultiheadAttention(4, 2, { batch_first = true })",
    "x1, x2, x2, { key_padding_mask = %s, need_weights = false }" % HIDDEN,
     MHA(4, 2, batch_first=True), lambda m, q, k: m(q, k, k, key_padding_mask=hidden, need_weights=False)[0],
         rand(2, 3, 4), rand(2, 4, 4, seed=1))
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x2, x3, { key_padding_mask = %s, attn_mask = %s }" % (
    HIDDEN, EACH),
     MHA(4, 2), lambda m, q, k, v: m(q, k, v, key_padding_mask=hidden, attn_mask=each), q, k, v)
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x2, x3, { attn_mask = %s, need_weights = false }" % SQUARE,
     MHA(4, 2), lambda m, q, k, v: m(q, k, v, attn_mask=square, need_weights=False)[0], q, k, v)
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x2, x3, { attn_mask = %s:double() }" % SQUARE,
     MHA(4, 2), lambda m, q, k, v: m(q, k, v, attn_mask=square.double()), q, k, v)
case("MultiheadAttention", "MultiheadAttention(4, 2, { kdim = 3, vdim = 5 })", "x1, x2, x3", MHA(4, 2, kdim=3, vdim=5),
    lambda m, q, k, v: m(q, k, v),
     q, rand(4, 2, 3, seed=1), rand(4, 2, 5, seed=2))
case("MultiheadAttention", "MultiheadAttention(4, 2, { add_bias_kv = true, add_zero_attn = true })",
     "x1, x2, x3, { key_padding_mask = %s, attn_mask = %s }" % (HIDDEN, SQUARE),
         MHA(4, 2, add_bias_kv=True, add_zero_attn=True),
     lambda m, q, k, v: m(q, k, v, key_padding_mask=hidden, attn_mask=square), q, k, v)
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x1, x1", MHA(4, 2), lambda m, x: m(x, x, x), rand(3, 4))
causal = torch.ones(3, 3).triu(1).bool()
case("MultiheadAttention", "MultiheadAttention(4, 2)", "x1, x1, x1, { is_causal = true, need_weights = false }",
    MHA(4, 2),
     lambda m, x: m(x, x, x, attn_mask=causal, is_causal=True, need_weights=False)[0], q)

CAUSAL = "core.arange(3):gt(core.arange(3):view(3, 1))"
Encoder, Decoder = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
case("TransformerEncoderLayer", "TransformerEncoderLayer(4, 2, { dim_feedforward = 6 })", "x1", Encoder(4, 2, 6),
    lambda m, x: m(x), q)
case("TransformerEncoderLayer",
    "TransformerEncoderLayer(4, 2, { dim_feedforward = 6, norm_first = true, batch_first = true, "
    "activation = \"gelu\", bias = false })",
     "x1, { src_mask = %s, src_key_padding_mask = core.tensor { { false, false, true }, { false, true, false } } }"
         % CAUSAL,
     Encoder(4, 2, 6, norm_first=True, batch_first=True, activation="gelu", bias=False),
     lambda m, x: m(x, src_mask=causal,
         src_key_padding_mask=torch.tensor([[False, False, True], [False, True, False]])), rand(2, 3, 4))
case("TransformerDecoderLayer", "TransformerDecoderLayer(4, 2, { dim_feedforward = 6 })",
    "x1, x2, { tgt_mask = %s, tgt_is_causal = true }" % CAUSAL,
     Decoder(4, 2, 6), lambda m, x, y: m(x, y, tgt_mask=causal, tgt_is_causal=True), q, k)
case("TransformerDecoderLayer", "TransformerDecoderLayer(4, 2, { dim_feedforward = 6, norm_first = true })",
    "x1, x2, { memory_key_padding_mask = %s }" % HIDDEN,
     Decoder(4, 2, 6, norm_first=True), lambda m, x, y: m(x, y, memory_key_padding_mask=hidden), q, k)
case("TransformerEncoder",
    "TransformerEncoder(nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6 }), 2, { norm = nn.LayerNorm(4) })",
     "x1, { mask = %s }" % CAUSAL, nn.TransformerEncoder(Encoder(4, 2, 6), 2, norm=nn.LayerNorm(4)),
         lambda m, x: m(x, mask=causal), q)
case("TransformerDecoder", "TransformerDecoder(nn.TransformerDecoderLayer(4, 2, { dim_feedforward = 6 }), 2)", "x1, x2",
     nn.TransformerDecoder(Decoder(4, 2, 6), 2), lambda m, x, y: m(x, y), q, k)
case("Transformer",
    "Transformer { d_model = 4, nhead = 2, num_encoder_layers = 1, num_decoder_layers = 2, dim_feedforward = 5 }",
    "x1, x2, { tgt_mask = nn.Transformer.generate_square_subsequent_mask(3):double() }",
     nn.Transformer(4, 2, 1, 2, 5),
         lambda m, s, t: m(s, t, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3)), k, q)
f.write()
