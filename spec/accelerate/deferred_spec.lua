-- Tensors whose values are made when they are used: lua/accelerate/deferred,
-- host/core/params/deferred.c.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local raises = require("spec.support.messages").raises
local nn, tensor = accelerate.nn, accelerate.tensor

-- What `edit` makes of a parameter, and what is known of one on which it was noted.
local function both(shape, dtype, edit)
  tensor.manual_seed(7)
  local real = nn.Parameter(core.zeros(shape, { dtype = dtype }))
  core.no_grad(edit, real)
  tensor.manual_seed(7)
  local noted = accelerate.init_empty_weights(function()
    local p = nn.Parameter(core.zeros(shape, { dtype = dtype }))
    core.no_grad(edit, p)
    return p
  end)
  return real, deferred.of(noted)
end

local EDITS = {
  uniform = function(p) nn.init.uniform_(p, -2, 3) end,
  normal = function(p) nn.init.normal_(p, 1, 0.3) end,
  truncated = function(p) nn.init.trunc_normal_(p, 0, 0.02) end,
  ["in place, uniform"] = function(p) p:uniform_(-1, 1) end,
  ["in place, normal"] = function(p) p:normal_(0, 0.02) end,
  ["then numbers"] = function(p) nn.init.normal_(p):mul_(2):add_(1):clamp_({ max = 2 }) end,
  ["then a row"] = function(p)
    nn.init.normal_(p)
    nn.init.zeros_(p:select(1, 3))
    p:narrow(1, 5, 2):uniform_()
  end,
  ["then columns"] = function(p)
    nn.init.uniform_(p)
    p:narrow(2, 2, 3):normal_()
    p[4] = core.arange(p:size(2)):to(p.dtype)
  end,
  orthogonal = function(p) nn.init.orthogonal_(p) end,
  sparse = function(p) nn.init.sparse_(p, 0.4) end,
  exponential = function(p) p:exponential_() end,
  nothing = function() end,
}

describe("a parameter without memory", function()
  for name, edit in pairs(EDITS) do
    it("has the bits of one with memory in any run of elements: " .. name, function()
      for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
        local real, recipe = both({ 13, 9 }, dtype, edit)
        local n, flat = real:numel(), real:detach():reshape(-1)
        for parts = 1, 7 do
          for i = 0, parts - 1 do
            local from = math.floor(n * i / parts)
            local into = core.empty({ math.floor(n * (i + 1) / parts) - from }, { dtype = dtype })
            recipe:fill(into, from)
            assert.is_true(tensor.equal(into, flat:narrow(1, from + 1, into:numel())), dtype .. " " .. from)
          end
        end
      end
    end)
  end

  it("is converted as one with memory is", function()
    local real, recipe = both({ 40, 5 }, "float32", EDITS["then numbers"])
    local half = deferred.new({ 40, 5 }, "bfloat16", "cpu", recipe:to("bfloat16", "cpu"))
    assert.is_true(tensor.equal(half, real:detach():bfloat16()))
    local back = recipe:to("bfloat16", "cpu"):to("float32", "cpu")
    assert.is_true(tensor.equal(deferred.new({ 40, 5 }, "float32", "cpu", back),
      real:detach():bfloat16():float()))
  end)

  it("is made by its first use, and takes memory from then on", function()
    local _, recipe = both({ 512, 512 }, "float32", EDITS.normal)
    for _ = 1, 3 do collectgarbage() end -- the tensor with memory is of the same size
    core.zeros(1)
    local before = core.memory_stats("cpu").live_bytes
    local t = deferred.new({ 512, 512 }, "float32", "cpu", recipe)
    assert.is_true(core.memory_stats("cpu").live_bytes - before < 1e5)
    assert.are.equal(recipe, deferred.of(t:narrow(1, 3, 4)))
    assert.is_true(t:t():select(1, 2):abs():sum():item() > 0)
    assert.is_nil(deferred.of(t))
    assert.is_true(core.memory_stats("cpu").live_bytes - before >= 2 ^ 20)
  end)

  it("stays without memory when its values cannot be made", function()
    local into, fails = nil, true
    local t = deferred.new({ 3 }, "float32", "cpu", { make = function(_, values)
      into = values
      if fails then error("no values today") end
      values:fill_(2)
    end })
    raises("no values today", t.sum, t)
    raises("no values today", function() return into + 1 end)
    fails = false
    assert.are.equal(6, t:sum():item())
    assert.are.equal(6, into:sum():item())
  end)

  it("names an edit that does not fit when its values are made", function()
    local _, recipe = both({ 4, 3 }, "float32", function(p)
      if p.device == "meta" then p:mul_(core.ones(7)) end
    end)
    raises("mul_, called on a parameter before its values were made", recipe.fill, recipe, core.empty(3), 0)
  end)
end)
