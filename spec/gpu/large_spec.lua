--- Tensors of more than 2^31 elements, where a position no longer fits 32 bits.  On a GPU with
--- little memory, and on the devices that are none, the same with a few thousand.
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("large tensors", function() it("need a device", function() pending(device.reason) end) end)
  return
end

local D = device.name
local NEEDED = 40e9
core.release(tensor.zeros(1, { device = D })) -- so that the device's memory is known
local large = device.kind == "cuda" and core.memory_stats(D).available_bytes > NEEDED
local N = large and 2 ^ 31 + 11 or 4107
-- their product is more than 2^31, too
local ROWS, COLUMNS = large and 2 ^ 16 + 1 or 33, large and 2 ^ 15 or 40
local bytes, half = { device = D, dtype = "uint8" }, { device = D, dtype = "bfloat16" }

local function small_or_large(name, body)
  it(name, function()
    if device.kind == "cuda" and not large then
      print(("(%s: with %d elements, since the GPU has less than %d GB free)"):format(name, N, NEEDED / 1e9))
    end
    body()
    collectgarbage() collectgarbage()
    core.empty_cache(D)
  end)
end

-- The last elements, on the host.
local function tail(t, n) return t:narrow(1, t:size(1) - n + 1, n):to("cpu"):totable() end

describe(("%s elements on %s (%s)"):format(large and "more than 2^31" or "some", D, device.kind), function()
  small_or_large("are filled, written, added up and found", function()
    local x = tensor.zeros(N, bytes)
    x[N] = 7
    x[N - 2] = 5
    assert.are.same({ 5, 0, 7 }, tail(x, 3))
    assert.are.equal(12, x:sum():item())
    assert.are.equal(N - 1, x:argmax():item())
    assert.are.same({ N - 3, N - 1 }, x:nonzero():view(-1):totable())
    local y = x + 1
    assert.are.same({ 6, 1, 8 }, tail(y, 3))
    assert.are.equal(N - 2, y:eq(1):sum():item())
    y:masked_fill_(y:eq(1), 2)
    assert.are.same({ 6, 2, 8 }, tail(y, 3))
    assert.are.equal(2 * (N - 2) + 14, y:sum():item())
    local picked = x:index_select(1, tensor({ N - 1, 0, N - 3 }, { dtype = "int64", device = D }))
    assert.are.same({ 7, 0, 5 }, picked:totable())
    x:index_fill_(1, tensor({ N - 1 }, { dtype = "int64", device = D }), 9)
    assert.are.same({ 9 }, tail(x, 1))
  end)

  small_or_large("are copied transposed, joined and cast", function()
    local rows = tensor.arange(251, { device = D }):to("uint8"):repeat_interleave(math.ceil(N / 251))
    local matrix = rows:narrow(1, 1, N - N % 3):view(3, -1)
    local turned = matrix:t():contiguous()
    local n = matrix:size(2)
    for _, column in ipairs { 1, math.floor(n / 2), n } do
      assert.are.same(matrix:select(2, column):totable(), turned:select(1, column):totable())
    end
    assert.are.equal(matrix:sum():item(), turned:sum():item())
    local joined = tensor.cat({ rows:narrow(1, 1, 5), rows })
    assert.are.same(tail(rows, 4), tail(joined, 4))
    assert.are.equal(rows:sum():item() + rows:narrow(1, 1, 5):sum():item(), joined:sum():item())
    joined = nil -- luacheck: ignore
    local cast = rows:to("bfloat16")
    assert.are.same(tail(rows, 4), tail(cast, 4))
    assert.are.equal(rows:max():item(), cast:max():item())
  end)

  small_or_large("go through pointwise functions, softmax and norms, forward and backward", function()
    local x = tensor.randn(ROWS, COLUMNS, half)
    local last = x:narrow(1, ROWS - 1, 2)
    local function alike(what, got, expected, tolerance)
      local worst = (got:float() - expected:float()):abs():max():item()
      assert.is_true(worst <= tolerance,
        ("%s: the last rows differ by %g from those computed alone"):format(what, worst))
    end
    for name, fn in pairs {
      gelu = function(t) return F.gelu(t, "tanh") end, softmax = function(t) return F.softmax(t, 2) end,
      layer_norm = function(t) return F.layer_norm(t, { COLUMNS }) end,
    } do
      local y = fn(x)
      alike(name, y:narrow(1, ROWS - 1, 2), fn(last), 1e-2)
      core.release(y)
      local leaf, few = x:detach():requires_grad_(), last:detach():clone():requires_grad_()
      y = fn(leaf)
      local g = tensor.grad({ y }, { leaf }, { grad_outputs = { x } })
      core.release(y)
      local g_few = tensor.grad({ fn(few) }, { few }, { grad_outputs = { last } })
      alike(name .. "'s gradient", g:narrow(1, ROWS - 1, 2), g_few, 2e-2)
      core.release(g)
    end
  end)

  small_or_large("are the classes of a cross-entropy, and what a product gives", function()
    local a, b = tensor.randn(ROWS, 16, half), tensor.randn(16, COLUMNS, half)
    local logits = a:mm(b)
    local few = a:narrow(1, ROWS - 1, 2):mm(b)
    assert.is_true((logits:narrow(1, ROWS - 1, 2):float() - few:float()):abs():max():item() <= 0.13)
    local target = tensor.arange(ROWS, { device = D }) % COLUMNS
    local losses = F.cross_entropy(logits, target, { reduction = "none" })
    local alone = F.cross_entropy(few, target:narrow(1, ROWS - 1, 2), { reduction = "none" })
    assert.is_true((losses:narrow(1, ROWS - 1, 2):float() - alone:float()):abs():max():item() <= 0.13)
    local leaf = logits:detach():requires_grad_()
    F.cross_entropy(leaf, target, { reduction = "sum" }):backward()
    local last = leaf.grad:select(1, ROWS):float()
    assert.is_true(math.abs(last:sum():item()) < 0.1)
    assert.are.equal(target[ROWS]:item(), last:argmin():item())
  end)

  small_or_large("are drawn with the same bits, in one piece or two", function()
    local whole = tensor.rand(N, { device = D, dtype = "bfloat16", generator = tensor.Generator(3) })
    local again = tensor.rand(N, { device = D, dtype = "bfloat16", generator = tensor.Generator(3) })
    assert.is_true(tensor.equal(whole, again))
    local n = 4096
    local differs = whole:narrow(1, N - n + 1, n):ne(whole:narrow(1, 1, n)):sum():item()
    assert.is_true(differs > n / 2, "the end repeats the beginning")
    local mean = whole:narrow(1, N - n + 1, n):float():mean():item()
    assert.is_true(mean > 0.45 and mean < 0.55, mean)
  end)
end)
