-- Mixed precision of an Accelerator: casting, outputs in float32, master weights and working
-- copies.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local parallel = require "accelerate.parallel"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

--- How often a kernel whose name has this text ran since the last reset.
local function calls(text)
  local n = 0
  for name, count in pairs(core.kernel_stats()) do
    if name:find(text, 1, true) then n = n + count end
  end
  return n
end

--- Whether products of half types stay in them here; a processor without bfloat16 widens them, and
--- then float32 ones are seen, too.
local function native() return calls("through float32") == 0 end

local function mlp() return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)) end

describe("mixed_precision", function()
  before_each(function()
    state.reset()
    tensor.manual_seed(3)
  end)
  after_each(function() state.reset() end)

  it("is told by the accelerator and its state", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    assert.are.equal("bf16", a.mixed_precision)
    assert.are.equal("bf16", a.state.mixed_precision)
    assert.is_true(a.native_amp)
    assert.is_nil(a.scaler)
    assert.is_false(a.fp8_enabled)
    assert.are.equal("bf16", accelerate.Accelerator().mixed_precision)
    assert.error_matches(function() accelerate.Accelerator { mixed_precision = "no" } end,
      "was made with 'bf16'")
    state.reset()
    assert.is_false(accelerate.Accelerator { mixed_precision = "no" }.native_amp)
  end)

  it("refuses what a CPU does not have, and says what it does", function()
    assert.error_matches(function() accelerate.Accelerator { mixed_precision = "bf61" } end,
      "did you mean 'bf16'")
    assert.are.equal("no", accelerate.Accelerator().mixed_precision)
  end)

  it("comes from the environment unless it is given", function()
    local code = [[print(require("accelerate").Accelerator(%s).mixed_precision)]]
    local host = require "spec.support.host"
    local function says(argument)
      local _, out = host.run({ "-e", code:format(argument) },
        { env = { ACCELERATE_MIXED_PRECISION = "bf16" } })
      return (out:gsub("%s+$", ""))
    end
    assert.are.equal("bf16", says(""))
    assert.are.equal("no", says('{ mixed_precision = "no" }'))
  end)

  it("runs a prepared model's forward in bfloat16 and returns float32", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = mlp()
    local x = tensor.randn(7, 20)
    local plain = model(x)
    assert.are.equal(model, a:prepare(model))
    a:prepare(model) -- once more changes nothing
    core.kernel_stats { reset = true }
    local y = model(x)
    assert.are.equal("float32", y.dtype)
    local inside
    local handle = model[2]:register_forward_hook(function(_, _, out) inside = out.dtype end)
    model(x)
    handle:remove()
    assert.are.equal("bfloat16", inside)
    assert.is_true(calls("mm bfloat16 -> bfloat16") >= 2)
    if native() then assert.are.equal(0, calls("mm float32")) end
    assert.is_true(tensor.allclose(y, plain, { rtol = 2e-2, atol = 2e-2 }))
    assert.is_false(tensor.equal(y, plain))
    assert.is_true(tensor.equal(y, model:forward(x)))
    assert.is_false(tensor.is_autocast_enabled())
  end)

  it("gives the model its own forward back through unwrap_model", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = nn.Linear(3, 2)
    local x = tensor.randn(4, 3)
    local plain = model(x)
    a:prepare(model)
    assert.are.equal(model, a:unwrap_model(model))
    assert.is_false(tensor.equal(plain, model(x)))
    assert.are.equal(model, a:unwrap_model(model, { keep_fp32_wrapper = false }))
    assert.is_true(tensor.equal(plain, model(x)))
  end)

  it("converts nested outputs, and only floating ones of half types", function()
    local given = { a = tensor.ones(2, { dtype = "bfloat16" }),
      b = { tensor.ones(2, { dtype = "int64" }), "text", tensor.ones(1, { dtype = "float16" }) },
      c = tensor.ones(1, { dtype = "float64" }) }
    local got = utils.convert_to_fp32(given)
    assert.are.same({ "float32", "int64", "text", "float32", "float64" },
      { got.a.dtype, got.b[1].dtype, got.b[2], got.b[3].dtype, got.c.dtype })
    local first, second, third = utils.convert_outputs_to_fp32(function(t) return t, nil, { t } end)(given.a)
    assert.are.same({ "float32", "float32" }, { first.dtype, third[1].dtype })
    assert.is_nil(second)
  end)

  it("casts what runs in accelerator:autocast, as its handler says", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local x = tensor.randn(2, 2)
    local function dtype(t) return t:mm(t).dtype end
    assert.are.equal("bfloat16", a:autocast(dtype, x))
    assert.are.equal("float32", a:autocast({ enabled = false }, dtype, x))
    assert.are.equal("float32", a:autocast(accelerate.AutocastKwargs { enabled = false }, dtype, x))
    assert.are.equal("float32",
      a:autocast({ autocast_handler = accelerate.AutocastKwargs { enabled = false } }, dtype, x))
    assert.error_matches(function() a:autocast({ enable = false }, dtype) end, "did you mean 'enabled'")
    assert.error_matches(function() a:autocast() end, "expected a function")
    assert.error_matches(function() a:autocast(dtype, { enabled = false }) end,
      "autocast: the options come before the function: { enabled = ... }, fn")
    assert.error_matches(function() tensor.autocast(dtype, { dtype = "float16" }) end,
      "autocast: the options come before the function: { dtype = ... }, fn")
    a:autocast(function(t) assert.are.equal(x, t.dtype) end, { dtype = x })
    state.reset()
    local off = accelerate.Accelerator { mixed_precision = "bf16",
      kwargs_handlers = { accelerate.AutocastKwargs { enabled = false } } }
    assert.are.equal("float32", off:autocast(dtype, x))
    local model = off:prepare(nn.Linear(2, 2))
    core.kernel_stats { reset = true }
    assert.are.equal("float32", model(x).dtype)
    assert.are.equal(0, calls("mm bfloat16"))
    assert.error_matches(function() accelerate.Accelerator { kwargs_handlers = { {} } } end,
      "kwargs_handlers: entry 1.*AutocastKwargs")
    local twice = { accelerate.AutocastKwargs(), accelerate.AutocastKwargs() }
    assert.error_matches(function() accelerate.Accelerator { kwargs_handlers = twice } end,
      "only one AutocastKwargs")
    state.reset()
    assert.are.equal("float32", accelerate.Accelerator():autocast(dtype, x))
  end)

  it("keeps float32 weights that take steps no bfloat16 could, and copies that follow them", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = mlp()
    local optimizer = optim.SGD(model:parameters(), { lr = 1e-5 })
    model, optimizer = a:prepare(model, optimizer)
    local chunk = parallel.record_of(model).flats[1]
    assert.are.equal("bfloat16", chunk.work.dtype)
    local x, y = tensor.randn(16, 20), tensor.randint(0, 4, 16)
    local loss_fn = nn.CrossEntropyLoss()
    local weight = model[1].weight
    local before = weight:detach():clone()
    local half_before = before:to("bfloat16")

    local function step()
      local loss = loss_fn(model(x), y)
      optimizer:zero_grad()
      a:backward(loss)
      optimizer:step()
    end
    core.kernel_stats { reset = true }
    step()
    assert.is_true(calls("mm bfloat16 -> bfloat16") >= 3)  -- two layers forward, one input gradient
    assert.are.equal(2, calls("mm bfloat16 -> float32"))   -- the weights' gradients, into the float32 buffer
    if native() then assert.are.equal(0, calls("mm float32")) end

    local moved = (weight:detach() - before):abs()
    local ulp = before:abs() * 2 ^ -8 -- half of bfloat16's spacing at least
    assert.is_true(moved:max():item() > 0)
    assert.is_true(moved:lt(ulp * 0.5):logical_or(before:abs():lt(1e-3)):all():item())
    assert.is_true(weight:to("bfloat16"):eq(half_before):float():mean():item() > 0.95)

    local _, current = core.work_of(weight)
    assert.is_true(current) -- the optimizer wrote it
    assert.is_true(tensor.equal(core.work_of(weight), weight:detach():to("bfloat16")))
    for _ = 1, 200 do step() end
    local shift = (weight:detach() - before):abs():max():item()
    assert.is_true(shift > 50 * moved:max():item()) -- what is lost in bfloat16 adds up in float32
    assert.is_true(tensor.equal(core.work_of(weight), weight:detach():to("bfloat16")))
  end)

  it("notices weights that the script writes", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = a:prepare(nn.Linear(3, 2, { bias = false }))
    local x = tensor.eye(3)
    model(x)
    core.no_grad(function() model.weight:fill_(5) end)
    assert.are.equal(5, model(x)[1][1]:item())
    model:load_state_dict { weight = tensor.full({ 2, 3 }, 9) }
    assert.are.equal(9, model(x)[1][1]:item())
  end)

  it("serves weights that are tied, frozen or used twice", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local first, second, third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    third:requires_grad_(false)
    local plain = nn.Sequential(first, nn.Tanh(), second, third)
    local x = tensor.randn(5, 6)
    plain(x):square():sum():backward()
    local want = first.weight.grad:clone()
    plain:zero_grad()
    local model = a:prepare(plain)
    model(x):square():sum():backward()
    assert.are.equal("float32", first.weight.grad.dtype)
    assert.is_true(tensor.allclose(first.weight.grad, want,
      { rtol = 5e-2, atol = 5e-2 * want:abs():max():item() }))
    assert.is_nil(third.weight.grad)
  end)

  it("accumulates gradients in float32 over several backward passes", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = a:prepare(nn.Linear(8, 8))
    local x = tensor.randn(4, 8)
    model(x):sum():backward()
    local once = model.weight.grad:clone()
    for _ = 1, 7 do model(x):sum():backward() end
    assert.is_true(tensor.allclose(model.weight.grad, once * 8, { rtol = 1e-6 }))
  end)

  it("leaves the working copy of what only float32 rows use alone", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local table_of, layer = nn.Embedding(500, 64), nn.Linear(64, 400)
    local model = nn.Sequential(table_of, layer)
    local optimizer = optim.AdamW(model:parameters())
    model, optimizer = a:prepare(model, optimizer)
    for _ = 1, 2 do
      model(tensor.randint(0, 500, 32)):square():mean():backward()
      optimizer:step()
    end
    assert.is_true((select(2, core.work_of(layer.weight))))
    assert.is_false((select(2, core.work_of(table_of.weight))))
    assert.are.equal(0, core.work_of(table_of.weight):float():abs():max():item())
    local want = table_of.weight:detach():to("bfloat16")
    tensor.autocast(function() return tensor.linear(tensor.ones(1, 64), table_of.weight) end)
    assert.is_true(tensor.equal(want, core.work_of(table_of.weight)))
  end)

  it("allocates nothing fresh in a steady step", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = mlp()
    local optimizer = optim.AdamW(model:parameters())
    model, optimizer = a:prepare(model, optimizer)
    local x, y, loss_fn = tensor.randn(64, 20), tensor.randint(0, 4, 64), nn.CrossEntropyLoss()
    local function steps(n)
      for _ = 1, n do
        tensor.scope(function()
          local loss = loss_fn(model(x), y)
          optimizer:zero_grad()
          a:backward(loss)
          optimizer:step()
        end)
      end
      collectgarbage() collectgarbage()
    end
    steps(5)
    local before = core.memory_stats()
    steps(50)
    local after = core.memory_stats()
    assert.are.equal(after.allocations - before.allocations, after.cache_hits - before.cache_hits)
    assert.are.equal(before.live_bytes, after.live_bytes)
    assert.are.equal(before.structs, after.structs)
  end)

  it("trains as PyTorch's autocast does", function()
    local reference = dofile("spec/reference/autocast_reference.lua")
    local sizes = reference.sizes
    local function wave(rows, cols, phase, scale)
      local values = {}
      for i = 0, rows * cols - 1 do values[i + 1] = scale * math.sin(phase + 1.7 * i + 0.001 * i * i) end
      return tensor(values):reshape(rows, cols)
    end
    local function train(mode)
      state.reset()
      local a = accelerate.Accelerator { mixed_precision = mode }
      local layers = {}
      for k = 1, #sizes - 1 do
        local layer = nn.Linear(sizes[k], sizes[k + 1])
        core.no_grad(function()
          layer.weight:copy_(wave(sizes[k + 1], sizes[k], k - 1, 1.7 / math.sqrt(sizes[k])))
          layer.bias:zero_()
        end)
        layers[#layers + 1] = layer
        if k < #sizes - 1 then layers[#layers + 1] = nn.ReLU() end
      end
      local labels = {}
      for i = 0, reference.rows - 1 do labels[i + 1] = (i * i + 3 * i) % sizes[#sizes] end
      local x, y = wave(reference.rows, sizes[1], 0.5, 1), tensor(labels, { dtype = "int64" })
      local model = nn.Sequential(unpack(layers))
      local optimizer = optim.AdamW(model:parameters(), { lr = reference.lr })
      model, optimizer = a:prepare(model, optimizer)
      local loss_fn, losses = nn.CrossEntropyLoss(), {}
      for k = 1, reference.steps do
        local loss = loss_fn(model(x), y)
        optimizer:zero_grad()
        a:backward(loss)
        optimizer:step()
        losses[k] = loss:item()
      end
      return losses
    end
    for k, loss in ipairs(train("no")) do
      assert.is_near(reference.float32[k], loss, 1e-4 * reference.float32[k])
    end
    for k, loss in ipairs(train("bf16")) do
      assert.is_near(reference.bfloat16[k], loss, 8e-3 * reference.bfloat16[k])
      assert.is_near(reference.float32[k], loss, 1.2e-2 * reference.float32[k])
    end
  end)

  it("agrees between two ranks", function()
    ranks.ok(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local a = accelerate.Accelerator { mixed_precision = "bf16" }
      core.manual_seed(a.process_index)
      local model = nn.Linear(8, 3)
      local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
      model, optimizer = a:prepare(model, optimizer)
      for _ = 1, 5 do
        local loss = model(core.randn(4, 8)):square():mean()
        optimizer:zero_grad()
        a:backward(loss)
        optimizer:step()
      end
      local all = a:gather(model.weight:detach():reshape(1, 24))
      check((all[1] - all[2]):abs():max():item() == 0, "weights differ")
      check(model(core.ones(1, 8)).dtype == "float32", "not float32")
    ]])
  end)
end)
