-- The training steps of bench/traffic.lua: { name, script, arguments(sizes), runs, full,
-- terms(sizes), least(sizes) }.  `least` has bytes for the names that kernels have on the device;
-- what it does not name, such as a copy, moves nothing that has to be moved.
--
-- All are steps in bfloat16 by autocast: weights, gradients, optimizer's states and the residual
-- stream in float32, each weight also as a working copy in bfloat16, everything else in bfloat16.
local TIMES = 30 -- bytes of AdamW for each parameter: four numbers read, three and the copy written
local SGD = 22   -- of SGD with momentum: three read, two and the copy written

-- ---- GPT-2

local function gpt(layers, width, seq, vocab, batch)
  return { layers = layers, width = width, seq = seq, vocab = vocab, batch = batch }
end

local function gpt_terms(s)
  local n, c = s.batch * s.seq, s.width
  return { s.layers * n * c, n * c, n * s.vocab, s.layers * c * c, s.vocab * c, s.seq * c, s.layers * c,
    s.layers * n, n, 1 }
end

-- A layer's products with weights: 12 width^2.  Each reads its weight twice and writes its
-- gradient.
local function gpt_least(s)
  local n, c = s.batch * s.seq, s.width
  local each, weights = s.layers * n * c, 12 * s.layers * c * c
  local params = weights + 13 * s.layers * c + (s.vocab + s.seq + 2) * c
  return {
    -- forward: qkv 2 + 6, out 2 + 2, up 2 + 8 + 8 (the input of gelu), down 8 + 2; backward: for
    -- each product the gradients of its input and of its weight, from its result's gradient twice
    product = (8 + 4 + 18 + 10 + (6 + 2 + 2 + 6) + (2 + 2 + 2 + 2) + (8 + 2 + 8 + 2) + (2 + 8 + 8 + 2 + 8)) *
      each + 8 * weights + (2 + 2 + 2) * n * s.vocab + 6 * n * c + 8 * s.vocab * c,
    attention = (6 + 2 + 6 + 2 + 2 + 6) * each,
    -- x + y and its norm: reads x, y; writes the sum and the norm
    layer_norm = 2 * (4 + 2 + 4 + 2) * each + (4 + 2) * n * c,
    -- reads the norm's gradient, x, and the sum's gradient; writes the latter, and in bfloat16
    layer_norm_backward = 2 * (2 + 4 + 4 + 4 + 2) * each + (2 + 4 + 4 + 2) * n * c,
    cross_entropy = (2 + 2 + 2) * n * s.vocab,
    embedding = (4 + 4 + 4 + 4) * n * c,
    optimizer = TIMES * params,
  }
end

-- ---- BERT

local BERT_SEQ = 128

local function bert(layers, width, ffn, vocab, batch)
  return { layers = layers, width = width, ffn = ffn, vocab = vocab, batch = batch }
end

local function bert_terms(s)
  local n, c = s.batch * BERT_SEQ, s.width
  return { s.layers * n * c, s.layers * n * s.ffn, n * c, s.layers * c * c, s.layers * c * s.ffn, s.vocab * c,
    c * c,
    s.layers * (c + s.ffn), s.layers * n, n, 1 }
end

local function bert_least(s)
  local n, c, f = s.batch * BERT_SEQ, s.width, s.ffn / s.width
  local each, weights = s.layers * n * c, s.layers * (4 * c * c + 2 * c * s.ffn)
  local params = weights + s.layers * (9 * c + s.ffn) + (s.vocab + 512 + 2) * c + c * c + 5 * c + 2
  return {
    product = (8 + 4 + (2 + 4 * f) + (2 * f + 2) + 16 + 8 + (2 * f + 2 + 2 * f + 2) + (
      2 + 6 * f + 2)) * each +
      8 * (weights + c * c),
    attention = (6 + 2 + 6 + 2 + 2 + 6) * each,
    -- dropout, x + y and its norm: reads x, y; writes the sum, the norm (in both types), and which
    -- elements were dropped (one byte)
    layer_norm = 2 * (4 + 2 + 4 + 4 + 2 + 1) * each + (4 + 4 + 2 + 1) * n * c,
    -- reads both gradients of the norm, the sum, what was dropped; writes both gradients
    layer_norm_backward = 2 * (4 + 2 + 4 + 1 + 4 + 2) * each + (4 + 4 + 1 + 4) * n * c,
    embedding = (4 + 4 + 4 + 4) * n * c,
    optimizer = TIMES * params,
  }
end

-- ---- ResNet-50

local function resnet(batch, side, width) return { batch = batch, side = side, width = width } end

-- Numbers at width 64: elements in front of and behind all convolutions for each position of a
-- picture, those behind the first and its pooling, parameters of convolutions, channels of norms.
local function resnet_sizes()
  local ins, outs, weights, norms = 3, 64 / 4, 64 * 3 * 49, 64
  local from, at = 64, 16
  for stage, middle in ipairs { 64, 128, 256, 512 } do
    for b = 1, ({ 3, 4, 6, 3 })[stage] do
      local to, area = 4 * middle, at
      if stage > 1 and b == 1 then area = at * 4 end
      ins, outs = ins + from / at + middle / at + middle / area,
        outs + middle / at + middle / area + to / area
      weights, norms = weights + from * middle + 9 * middle * middle + middle * to, norms + 2 * middle + to
      if b == 1 then
        ins, outs, weights, norms = ins + from / at, outs + to / area, weights + from * to, norms + to
      end
      from, at = to, area
    end
  end
  return ins, outs, weights, norms
end

local function resnet_terms(s)
  return { s.batch * s.side ^ 2 * s.width, s.batch * s.side ^ 2, s.width ^ 2, s.width * 1000,
    s.batch * s.width, s.width,
    1 }
end

-- At width 64 alone.
local function resnet_least(s)
  local ins, outs, weights, norms = resnet_sizes()
  local area = s.batch * s.side ^ 2
  return {
    -- forward: input, result, weight; backward twice: the result's gradient, and the input or its
    -- gradient, and the weight or its gradient in float32; none for the picture
    graph = 2 * area * (3 * ins + 3 * outs - 3) + (2 + 2 + 4) * weights,
    -- forward: reads twice, writes; backward: reads both twice, writes
    batch_norm = 2 * area * outs * (3 + 5),
    max_pool2d = 2 * area * (16 + 4) * 2,
    optimizer = SGD * (weights + 2 * norms + 2048 * 1000 + 1000),
    product = 8 * 2048 * 1000,
  }
end

return {
  {
    name = "GPT-2 124M, T 1024, batch 8, bf16", script = "gpt",
    arguments = function(s)
      return ("%dx%dx%dx%dx%dx%d 1 1 --dtype bf16"):format(s.layers, s.width, s.width / 64, s.seq, s.vocab,
        s.batch)
    end,
    runs = { gpt(1, 64, 64, 257, 2), gpt(2, 64, 64, 257, 2), gpt(1, 128, 64, 257, 2), gpt(1, 64, 64, 515, 2),
      gpt(1, 64, 64, 257, 4), gpt(1, 64, 128, 257, 2), gpt(2, 128, 64, 515, 2), gpt(2, 64, 128, 1031, 4),
      gpt(1, 128, 128, 257, 4), gpt(3, 128, 64, 129, 3), gpt(1, 192, 64, 1031, 6), gpt(2, 192, 64, 257, 2) },
    full = gpt(12, 768, 1024, 50257, 8), terms = gpt_terms, least = gpt_least, most = 1.5,
  },
  {
    name = "BERT base, T 128, batch 8, bf16", script = "bert",
    arguments = function(s)
      return ("%dx%dx%dx%dx%d 1 1 --batch %d --dtype bf16"):format(s.layers, s.width, s.width / 64, s.ffn,
        s.vocab, s.batch)
    end,
    runs = { bert(1, 64, 128, 256, 1), bert(2, 64, 128, 256, 1), bert(1, 128, 128, 256, 1),
      bert(1, 64, 256, 256, 1), bert(1, 64, 128, 1024, 1), bert(1, 64, 128, 256, 2),
      bert(2, 128, 256, 512, 2),
      bert(2, 64, 512, 256, 3), bert(3, 128, 128, 256, 1), bert(1, 192, 192, 512, 2),
      bert(2, 192, 128, 256, 1),
      bert(1, 128, 384, 2048, 4) },
    full = bert(12, 768, 3072, 30522, 8), terms = bert_terms, least = bert_least,
  },
  {
    name = "ResNet-50, 224 x 224, batch 64, bf16", script = "resnet50",
    arguments = function(s)
      return ("--batch %d --side %d --width %d --steps 1 --warmup 1 --dtype bf16"):format(s.batch, s.side,
        s.width)
    end,
    runs = { resnet(2, 32, 8), resnet(3, 32, 8), resnet(4, 32, 8), resnet(2, 64, 8), resnet(2, 32, 16),
      resnet(3, 64, 16) },
    full = resnet(64, 224, 64), terms = resnet_terms, least = resnet_least,
  },
}
