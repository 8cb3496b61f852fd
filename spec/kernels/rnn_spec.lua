--- Recurrent layers on few sequences, whose weight the CPU packs once for all steps: sizes that
--- fill no vector and no slice, packed batches, gradients, and the same bits for any number of
--- threads and of sequences.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local rnn = nn.utils.rnn

local STEPS = 6

local function layer(kind, width, hidden)
  tensor.manual_seed(7)
  return nn[kind](width, hidden)
end

-- What a layer gives, and the gradients of its input and its weights.
local function results(m, x)
  local leaf = x:detach():requires_grad_()
  local y = m(leaf)
  m:zero_grad()
  ;(y * y):sum():backward()
  local list = { y:detach(), leaf.grad }
  for _, p in m:named_parameters() do list[#list + 1] = p.grad end
  return list
end

local function assert_close(got, expected, what)
  for i, e in ipairs(expected) do
    local far = (got[i]:double() - e):abs():max():item() / (1 + e:abs():max():item())
    assert.is_true(far < 2e-6, ("%s, result %d: %g"):format(what, i, far))
  end
end

describe("a recurrent layer of few sequences", function()
  local threads = core.get_num_threads()
  after_each(function() core.set_num_threads(threads) end)

  for _, kind in ipairs { "LSTM", "GRU", "RNN" } do
    it("agrees with float64: " .. kind, function()
      for _, hidden in ipairs { 1, 5, 16, 33, 100, 300 } do
        for _, batch in ipairs { 2, 3, 4, 6, 7, 16, 32, 33 } do
          local x = tensor.randn(STEPS, batch, 3, { generator = tensor.Generator(5) })
          local got = results(layer(kind, 3, hidden), x)
          assert_close(got, results(layer(kind, 3, hidden):double(), x:double()),
            ("%s of %d, %d sequences"):format(kind, hidden, batch))
        end
      end
    end)

    it("has the same bits for any number of threads, and of sequences beside one: " .. kind, function()
      local m, x = layer(kind, 20, 150), tensor.randn(STEPS, 16, 20, { generator = tensor.Generator(5) })
      core.set_num_threads(1)
      local expected = results(m, x)
      for _, n in ipairs { 2, 3, 8 } do
        core.set_num_threads(n)
        for i, got in ipairs(results(m, x)) do assert.is_true(got:equal(expected[i]), n .. " threads") end
      end
      local few = m(x:narrow(2, 1, 5))
      assert.is_true(few:equal(expected[1]:narrow(2, 1, 5)), "five sequences of sixteen")
    end)
  end

  it("agrees with single sequences where they have several lengths", function()
    local m, list, lengths = layer("LSTM", 4, 40), {}, { 9, 9, 7, 5, 4, 1 }
    for i, n in ipairs(lengths) do list[i] = tensor.randn(n, 4, { generator = tensor.Generator(i) }) end
    local y = rnn.pad_packed_sequence((m(rnn.pack_sequence(list))))
    for i, n in ipairs(lengths) do
      local alone = m(list[i]:unsqueeze(2)):squeeze(2)
      assert.is_true((y:select(2, i):narrow(1, 1, n) - alone):abs():max():item() < 1e-6, "sequence " .. i)
    end
  end)
end)
