--- Arguments of nn.utils: by position in PyTorch's order, or by name.
local accelerate = require "accelerate"
local data = require "accelerate.data"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local rnn, utils = nn.utils.rnn, nn.utils

local sequences = { tensor { 1, 2, 3 }, tensor { 4, 5 } }

local function lists(tensors)
  local all = {}
  for i, t in ipairs(tensors) do all[i] = t:tolist() end
  return all
end

describe("arguments of clipping", function()
  local p = nn.Parameter(tensor.zeros(3))
  local function fresh()
    p.grad = tensor { 3, -4, 1 }
    return { p }
  end
  local function near(expected)
    for i, value in ipairs(p.grad:tolist()) do assert.near(expected[i], value, 1e-6) end
  end

  it("go by position, or by name", function()
    for _, given in ipairs { { 1, 1 }, { { max_norm = 1, norm_type = 1 } }, { 1, { norm_type = 1 } },
      { 1, 1, false, true } } do
      assert.equal(8, utils.clip_grad_norm_(fresh(), unpack(given)):item())
      near { 0.375, -0.5, 0.125 }
    end
    assert.equal(4, utils.clip_grad_norm_(fresh(), 1, math.huge):item())
    near { 0.75, -1, 0.25 }
    assert.near(math.sqrt(26), utils.clip_grad_norm_(fresh(), { max_norm = 100 }):item(), 1e-6)
    assert.equal(8, accelerate.Accelerator():clip_grad_norm_(fresh(), 1, 1):item())
    utils.clip_grad_value_(fresh(), { clip_value = 2 })
    near { 2, -2, 1 }
    utils.clip_grad_value_(fresh(), 2, true)
    near { 2, -2, 1 }
    utils.clip_grads_with_norm_(fresh(), { max_norm = 1, total_norm = 8 })
    near { 0.375, -0.5, 0.125 }
    fresh()
    assert.same({ 8, 8 }, { utils.get_total_norm({ p.grad }, 1):item(), utils.grad_norm({ p }, 1) })
  end)

  it("are checked", function()
    raises("clip_grad_norm_: an argument too many: 'junk'", utils.clip_grad_norm_, fresh(), 1, 2, false, true,
      "junk")
    raises("clip_grad_norm_: option 'error_if_nonfinite' must be true or false, got 'junk'",
      utils.clip_grad_norm_, fresh(), 1, {}, "junk")
    raises("clip_grad_norm_: max_norm must be at least 0, got -1", utils.clip_grad_norm_, fresh(), -1)
    raises("clip_grad_norm_: max_norm is missing", utils.clip_grad_norm_, fresh(), { norm_type = 1 })
    raises("clip_grad_norm_: norm_type is given twice, by position and by name", utils.clip_grad_norm_,
      fresh(),
      1, 2, { norm_type = 1 })
    raises("clip_grad_value_: an argument too many: 3", utils.clip_grad_value_, fresh(), 1, true, 3)
    raises("get_total_norm: unknown option 'max_norm'", utils.get_total_norm, { p.grad }, { max_norm = 1 })
    raises("clip_grads_with_norm_: total_norm is missing", utils.clip_grads_with_norm_, fresh(), 1)
  end)
end)

describe("arguments of nn.utils.rnn", function()
  it("go by position, or by name", function()
    assert.same({ { 1, 2, 3 }, { 4, 5, -1 } }, rnn.pad_sequence(sequences, true, -1):tolist())
    assert.same({ { 1, 2, 3 }, { 0, 4, 5 } }, rnn.pad_sequence(sequences, true, 0, "left"):tolist())
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 7 } }, rnn.pad_sequence(sequences, { padding_value = 7 }):tolist())
    local packed = rnn.pack_padded_sequence(rnn.pad_sequence(sequences, true), { 3, 2 }, true)
    assert.same({ 1, 4, 2, 5, 3 }, packed.data:tolist())
    local padded, lengths = rnn.pad_packed_sequence(packed, true, -1, 4)
    assert.same({ { 1, 2, 3, -1 }, { 4, 5, -1, -1 } }, padded:tolist())
    assert.same({ 3, 2 }, lengths:tolist())
    local turned = rnn.pack_padded_sequence(rnn.pad_sequence({ sequences[2], sequences[1] }, true), { 2, 3 },
      true, false)
    assert.same({ 1, 4, 2, 5, 3 }, turned.data:tolist())
    assert.same({ 1, 0 }, turned.sorted_indices:tolist())
    assert.same({ 1, 4, 2, 5, 3 }, rnn.pack_sequence({ sequences[2], sequences[1] }, false).data:tolist())
    assert.same({ { 1, 2, 3 }, { 4, 5, 9 } }, data.pad_sequence(sequences, true, 9):tolist())
    assert.same({ { 1, 2, 3 }, { 9, 4, 5 } }, data.pad_sequence(sequences, nil, 9, "left"):tolist())
  end)

  it("unpad", function()
    local x = tensor.arange(8, { dtype = "float32" }):view(4, 2)
    assert.same({ { 0, 2, 4 }, { 1, 3 } }, lists(rnn.unpad_sequence(x, tensor { 3, 2 }:long())))
    assert.same({ { 0, 2, 4, 6 }, {} }, lists(rnn.unpad_sequence(x:t(), { 9, 0 }, true)))
    assert.same({ { 0, 2, 4, 6 }, { 1 } }, lists(rnn.unpad_sequence(x:t(), { 4, 1 }, { batch_first = true })))
    raises("each of the 2 sequences, got 1 entries", nn.utils.rnn.pack_padded_sequence, tensor.ones(5, 2, 3),
      { 5 })
    raises("unpad_sequence: lengths must be a list or an int64 tensor with one entry for each of the 2",
      rnn.unpad_sequence, x, { 3 })
    raises("unpad_sequence: length 2 must be a whole number", rnn.unpad_sequence, x, { 3, 1.5 })
    raises("unpad_sequence: expected a tensor (T, B, ...), got 3", rnn.unpad_sequence, 3, { 1 })
  end)

  it("are checked", function()
    local x = tensor.zeros(3, 2)
    raises("pad_sequence: an argument too many: 'junk'", rnn.pad_sequence, sequences, true, 0, "right",
      "junk")
    raises("pad_sequence: option 'batch_first' must be true or false, got 0", rnn.pad_sequence, sequences, 0)
    raises("pad_sequence: an argument too many: 'junk'", data.pad_sequence, sequences, true, 0, "right", 3,
      "junk")
    raises("pack_padded_sequence: an argument too many: 1", rnn.pack_padded_sequence, x, { 3, 3 }, false,
      true,
      1)
    raises("pad_packed_sequence: an argument too many: 1", rnn.pad_packed_sequence,
      rnn.pack_sequence(sequences), true, 0, 3, 1)
    raises("pack_sequence: an argument too many: 1", rnn.pack_sequence, sequences, true, 1)
  end)
end)
