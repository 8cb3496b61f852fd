--- Packed sequences on the device: made there or sent there, through each kind of recurrent layer.
local device = require "spec.support.device"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local rnn = require "accelerate.nn.utils.rnn"

if not device.name then
  describe("packed sequences on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local LENGTHS = { 2, 6, 4 } -- not sorted

-- The padded result and the gradient of x (6, 3, 5) of a layer; `pack` makes the packed sequence.
local function trained(net, x, pack)
  x = x:detach():requires_grad_()
  local y, h = net(pack(x))
  local padded, lengths = rnn.pad_packed_sequence(y, { total_length = 7 })
  assert.are.same(LENGTHS, lengths:totable())
  local loss = padded:square():sum()
  if h then loss = loss + (type(h) == "table" and h[1] or h):sum() end
  loss:backward()
  return padded, x.grad
end

local function packed(x) return rnn.pack_padded_sequence(x, LENGTHS, { enforce_sorted = false }) end

describe(("packed sequences on %s"):format(device.name), function()
  for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
    it(kind .. " in both directions gives what it gives on the CPU", function()
      core.manual_seed(3)
      local net, x = nn[kind](5, 7, { num_layers = 2, bidirectional = true }), core.randn(6, 3, 5)
      local y, grad = trained(net, x, packed)
      net:to(device.name)
      local there, there_grad = trained(net, x:to(device.name), packed)
      assert.are.equal(device.name, there.device)
      device.agree(there, y, 1e-5, "the result")
      device.agree(there_grad, grad, 1e-5, "the gradient of x")
    end)
  end

  it("a sequence that was packed on the CPU is sent with its indices", function()
    core.manual_seed(4)
    local net, x = nn.GRU(5, 7, { bidirectional = true }), core.randn(6, 3, 5)
    local own = packed(x)
    local y = rnn.pad_packed_sequence((net(own)))
    local sent = own:to(device.name)
    assert.are.same({ device.name, device.name, "cpu" },
      { sent.data.device, sent.sorted_indices.device, sent.batch_sizes.device })
    assert.are.equal("cpu", own.data.device)
    device.agree(rnn.pad_packed_sequence((net:to(device.name)(sent))), y, 1e-5, "the result")
    assert.are.equal("bfloat16", sent:to("bfloat16").data.dtype)
  end)
end)
