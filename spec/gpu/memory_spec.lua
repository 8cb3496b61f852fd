--- Memory of a device over a training run: it stays as it is, running out is an error that a script
--- can catch, and what comes after works.
local device = require "spec.support.device"
local accelerate = require "accelerate"
local core = require "accelerate.core"
local tensor, nn, optim = accelerate.tensor, accelerate.nn, accelerate.optim
local F = nn.functional

if not device.name then
  describe("a device's memory", function() it("needs one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local NO_JOINING = "the fake device does not join what is given back"

local function clean()
  collectgarbage() collectgarbage()
  core.synchronize(D)
end

describe(("memory of %s (%s)"):format(D, device.kind), function()
  -- One training step of a model with convolution, norm, attention and dropout, under an
  -- Accelerator.
  local function trainer(mixed_precision)
    accelerate.state.reset()
    local accelerator = accelerate.Accelerator { mixed_precision = mixed_precision,
      gradient_accumulation_steps = 2 }
    local Net = nn.class "Net"
    function Net:init()
      self.conv, self.norm, self.qkv = nn.Conv2d(1, 8, 3, { padding = 1 }), nn.BatchNorm2d(8),
        nn.Linear(8, 24)
      self.last, self.drop, self.head = nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 5)
    end
    function Net:forward(x)
      return tensor.scope(function()
        local y = F.relu(self.norm(self.conv(x)))
        y = y:view(y:size(1), 8, -1):transpose(2, 3)
        local q, k, v = self.qkv(y):split_heads(2)
        local seen = F.scaled_dot_product_attention(q, k, v):transpose(2, 3):reshape(y:size(1), -1, 8)
        return self.head(self.drop(self.last(y + seen)):mean { dim = 2 })
      end)
    end
    local model = Net()
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local scheduler = optim.lr_scheduler.LambdaLR(optimizer, function() return 1 end)
    model, optimizer, scheduler = accelerator:prepare(model, optimizer, scheduler)
    assert.are.equal(D, accelerator.device)
    local losses = {}
    return function(n)
      for _ = 1, n do
        local x, y = tensor.randn(6, 1, 4, 4):to(D), tensor.randint(0, 5, { 6 }):to(D)
        accelerator:accumulate(model, function()
          local loss = F.cross_entropy(model(x), y)
          accelerator:backward(loss)
          if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1) end
          optimizer:step()
          scheduler:step()
          optimizer:zero_grad()
          losses[#losses + 1] = loss:item()
        end)
        collectgarbage() -- so that the peak is that of a step, not that of what was left to the collector
      end
      return losses
    end
  end

  for _, mode in ipairs { "no", "bf16" } do
    it(("is flat over a training run, mixed precision %s"):format(mode), function()
      local few, many = 4, device.kind == "cuda" and 300 or device.fake and 30 or 4
      local steps = trainer(mode)
      steps(few)
      clean()
      local before = core.memory_stats(D)
      core.reset_peak_memory_stats(D)
      steps(few)
      local peak = core.memory_stats(D).peak_bytes
      local losses = steps(many)
      clean()
      local after = core.memory_stats(D)
      assert.are.equal(before.live_bytes, after.live_bytes)
      assert.are.equal(before.live_blocks, after.live_blocks)
      assert.are.equal(before.reserved_bytes, after.reserved_bytes)
      assert.is_true(after.peak_bytes <= peak * 1.05 + 65536,
        ("the peak rose from %d to %d bytes"):format(peak, after.peak_bytes))
      for _, loss in ipairs(losses) do assert.is_true(loss == loss and loss < 50) end
      accelerate.state.reset()
    end)
  end

  it("that is used up is an error which says what is live and where it was made, and the script goes on",
    function()
    if device.fake then return pending(NO_JOINING) end
    clean()
    core.empty_cache(D)
    local limit = core.memory_stats(D).limit_bytes
    local chunk, list = math.floor(limit / 24), {}
    local before = core.memory_stats(D).live_bytes
    local ok, message = pcall(function()
      for i = 1, 40 do list[i] = tensor.empty(chunk, { device = D, dtype = "uint8" }) end
    end)
    assert.is_false(ok)
    message = tostring(message)
    assert.is_truthy(message:find("empty: " .. D .. ": out of memory", 1, true), message)
    assert.is_truthy(message:find("in live tensors", 1, true), message)
    assert.is_truthy(message:find(("%d x"):format(#list), 1, true), message)
    assert.is_truthy(message:find("memory_spec.lua:", 1, true), message)
    assert.is_true(#list >= 12 and #list <= 24, ("%d of 24 parts fitted"):format(#list))
    -- What was there before is whole, and small things still work.
    list[1]:fill_(3)
    assert.are.equal(3, list[1]:max():item())
    for i = 1, #list do tensor.release(list[i]) end
    list = nil -- luacheck: ignore
    clean()
    assert.are.equal(before, core.memory_stats(D).live_bytes)
    -- parts that lay apart are one piece again
    local again = tensor.empty(chunk * 8, { device = D, dtype = "uint8" })
    tensor.release(again)
    core.empty_cache(D)
    local losses = trainer "no"(2)
    assert.are.equal(2, #losses)
    accelerate.state.reset()
  end)

  it("is found by the collector before it counts as used up", function()
    if device.fake then return pending(NO_JOINING) end
    clean()
    local limit = core.memory_stats(D).limit_bytes
    local chunk = math.floor(limit / 5)
    -- garbage, eight times the memory that there is
    for _ = 1, 40 do local _ = tensor.empty(chunk, { device = D, dtype = "uint8" }) end
    clean()
    core.empty_cache(D)
  end)

  it("runs out in the middle of a step and leaves the next one whole", function()
    if device.fake then return pending(NO_JOINING) end
    clean()
    core.empty_cache(D)
    local w = tensor.randn(96, 96, { device = D, requires_grad = true })
    local function step() (w:mm(w):gelu():mm(w)):sum():backward() end
    step()
    local expected = w.grad:clone()
    w.grad = nil
    clean()
    core.empty_cache(D)
    -- Fill what is left, then give it back piece by piece, the smallest first: the step gets a
    -- little further each time.
    local filler, size = {}, core.memory_stats(D).limit_bytes / 2
    while size >= 512 do
      local ok, t = pcall(tensor.empty, math.floor(size), { device = D, dtype = "uint8" })
      if ok then filler[#filler + 1] = t else size = size / 2 end
    end
    local failed = 0
    while true do
      w.grad = nil
      local ok, message = pcall(step)
      if ok then assert.is_true(tensor.equal(expected, w.grad)) break end
      assert.is_truthy(tostring(message):find("out of memory", 1, true), tostring(message))
      failed = failed + 1
      assert.is_true(#filler > 0, "the step still fails with all memory given back")
      tensor.release(table.remove(filler))
      clean()
    end
    assert.is_true(failed > 0, "the memory was never short")
    for _, t in ipairs(filler) do tensor.release(t) end
  end)
end)
