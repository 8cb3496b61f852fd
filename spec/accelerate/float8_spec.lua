--- mixed_precision = "fp8": which layers compute in eight bits, what they compute, the recipes of
--- Accelerate's backends, and what a resumed run goes on with.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local float8 = require "accelerate.precision.float8"
local host = require "spec.support.host"
local models = require "accelerate.precision.float8_models"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
local cast, product = core._row "_float8_cast", core._row "_float8_product"

local function run_with(env, code) return host.run({ "-e", code }, { env = env }) end

local function mlp()
  return nn.Sequential(nn.Linear(32, 48), nn.GELU "tanh", nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64),
    nn.Linear(64, 10))
end

local function converted(model)
  local list = {}
  for name, module in model:named_modules() do
    if float8.use_of(module) then list[#list + 1] = name end
  end
  return list
end

local function accelerator(...)
  state.reset()
  return accelerate.Accelerator { mixed_precision = "fp8", kwargs_handlers = { ... } }
end

-- Some steps of a small classifier. Returns the losses and the model.
local function train(acc, steps, opts)
  opts = opts or {}
  tensor.manual_seed(5)
  local model = (opts.model or mlp)()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  local x = core.randn(48, 32)
  local y = x:matmul(core.randn(32, 10)):argmax(2)
  model, optimizer = acc:prepare(model, optimizer)
  local losses = {}
  for step = 1, steps do
    local loss = nn.functional.cross_entropy(model(x), y)
    acc:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    losses[step] = loss:item()
    if opts.after then opts.after(step, model, optimizer) end
  end
  return losses, model, x
end

local function same(a, b)
  assert.are.same(a.shape, b.shape)
  assert.are.equal(0, a:ne(b):sum():item())
end

describe("layers in eight bits", function()
  before_each(function()
    state.reset()
    tensor.manual_seed(4)
  end)
  after_each(function() state.reset() end)

  it("are all whose sizes are multiples of 16 but the first and the last, of torchao's kind", function()
    local model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 24), nn.Linear(24, 64), nn.Linear(64, 16),
      nn.Sequential(nn.Linear(16, 16), nn.Dropout()), nn.Linear(16, 32))
    local names = {}
    for name in pairs(model:state_dict()) do names[#names + 1] = name end
    assert.is_false(models.has_ao_layers(model))
    models.convert_model_to_fp8_ao(model)
    assert.are.same({ "3", "4.0" }, converted(model))
    assert.is_true(utils.has_ao_layers(model))
    assert.is_false(utils.has_transformer_engine_layers(model))
    for _, name in ipairs(names) do assert.is_not_nil(model:state_dict()[name], name) end
    assert.truthy(tostring(model):find("(3): Float8Linear(in_features=64, out_features=16, bias=True)", 1,
      true),
      tostring(model))
    models.convert_model_to_fp8_ao(model) -- once is enough
    assert.are.same({ "3", "4.0" }, converted(model))
  end)

  it("are those that a function takes", function()
    local model = mlp()
    models.convert_model_to_fp8_ao(model, { module_filter_func = function(module, name)
      return module.out_features == 64 and name ~= "2"
    end })
    assert.are.same({ "4" }, converted(model))
    assert.error_matches(function()
      models.convert_model_to_fp8_ao(mlp(), { module_filter_func = function() return true end })
    end, "5 is 10 x 64: products in eight bits need sizes that are multiples of 16")
  end)

  it("are all whose sizes are multiples of 16, of transformer-engine's kind", function()
    local model = mlp()
    utils.convert_model(model)
    assert.are.same({ "0", "2", "4" }, converted(model))
    assert.is_true(utils.has_transformer_engine_layers(model))
    assert.is_false(utils.has_ao_layers(model))
  end)

  it("are chosen by Accelerate's filters", function()
    local model = mlp()
    assert.are.same({ "0", "5" }, { utils.find_first_last_linear_layers(model) })
    assert.is_true(utils.filter_linear_layers(model:get_submodule "4", "4", { "0", "5" }))
    assert.is_false(utils.filter_linear_layers(model:get_submodule "0", "0", { "0", "5" }))
    assert.is_false(utils.filter_linear_layers(model:get_submodule "5", "5", {}))
    assert.is_true(utils.filter_first_and_last_linear_layers(model:get_submodule "1", "1"))
  end)

  -- A layer, its input and the gradient of its result.
  local function layer_of(rows)
    local model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 48), nn.Linear(48, 16))
    models.convert_model_to_fp8_ao(model)
    return model[2], core.randn(rows, 32, { requires_grad = true }), core.randn(rows, 48)
  end

  it("multiply rounded inputs, weights and gradients", function()
    for _, rows in ipairs { 32, 5 } do
      local layer, x, g = layer_of(rows)
      local y = layer(x)
      y:backward(g)
      local x8, x8t, xs = cast(x:detach(), nil, E4M3, true)
      local w8, w8t, ws = cast(layer.weight:detach(), nil, E4M3, true)
      local g8, g8t, gs = cast(g, nil, E5M2, true)
      same(product(x8, w8, xs, ws, layer.bias:detach(), "float32", true), y:detach())
      same(product(g8, w8t, gs, ws, nil, "float32", false), x.grad)
      same(product(g8t, x8t, gs, xs, nil, "float32", false), layer.weight.grad)
      same(g:sum(1), layer.bias.grad)
    end
  end)

  it("are within the error of E4M3 and E5M2 of float64", function()
    local layer, x, g = layer_of(64)
    layer(x):backward(g)
    local w, xd, gd = layer.weight:detach():double(), x:detach():double(), g:double()
    local function within(got, a, b, e)
      local sizes = a:abs():matmul(b:abs())
      local off = ((got:double() - a:matmul(b)):abs() / sizes):max():item()
      assert.is_true(off < e, ("off by %g"):format(off))
    end
    within(layer(x):detach() - layer.bias:detach(), xd, w:t(), 2 ^ -3 + 2 ^ -6)
    within(x.grad, gd, w, 2 ^ -4 + 2 ^ -3 + 2 ^ -6)
    within(layer.weight.grad, gd:t(), xd, 2 ^ -4 + 2 ^ -3 + 2 ^ -6)
  end)

  it("refuse inputs of other types as a Linear does, and a wrapper around no such layer", function()
    local layer, x = layer_of(16)
    for _, dtype in ipairs { "int64", "float64", E4M3 } do
      assert.error_matches(function() layer(x:detach():to(dtype)) end, "^linear: .*" .. dtype)
    end
    assert.error_matches(function() utils.apply_fp8_autowrap(mlp(), utils.TERecipeKwargs()) end,
      "apply_fp8_autowrap: no layer of Sequential computes in eight bits; convert_model comes first")
    for backend, more in pairs { ao = "; not the first and the last", te = "" } do
      local _, _, err = run_with({ ACCELERATE_FP8_BACKEND = backend }, [[
        local accelerate = require "accelerate"
        local model = accelerate.nn.Sequential(accelerate.nn.Linear(10, 10))
        accelerate.Accelerator { mixed_precision = "fp8" }:prepare(model)]])
      assert.truthy(err:find("no linear layer of Sequential is one that computes in eight bits (sizes " ..
        "that are " ..
        "multiples of 16" .. more .. ")", 1, true), err)
    end
  end)

  it("take any number of dims, and give the same without a tape", function()
    local layer, x = layer_of(24)
    local y = layer(x)
    same(y:detach(), layer(x:view(2, 3, 4, 32)):view(24, 48):detach())
    core.no_grad(function() same(y:detach(), layer(x)) end)
    assert.are.same({ 48 }, layer(x[1]).shape)
    assert.are.same({ 0, 48 }, layer(core.zeros(0, 32)).shape)
    assert.error_matches(function() layer(core.zeros(3, 31)) end, "31 features, weight.*Float8Linear")
  end)

  it("give results of the type of autocast", function()
    local layer, x = layer_of(16)
    local y
    tensor.autocast(function() y = layer(x) end)
    assert.are.equal("bfloat16", y.dtype)
    y:float():sum():backward()
    assert.are.equal("float32", layer.weight.grad.dtype)
    assert.are.equal("float32", x.grad.dtype)
  end)

  it("need a multiple of 16 rows where nothing is filled up", function()
    local model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16))
    models.convert_model_to_fp8_ao(model, { config = { pad_inner_dim = false } })
    model(core.zeros(32, 16))
    assert.error_matches(function() model(core.zeros(7, 16)) end,
      "the input has 7 rows, and with pad_inner_dim = false")
    assert.error_matches(function()
      models.convert_model_to_fp8_ao(model, { config = { emulate = true } })
    end,
      "emulate")
  end)

  it("have no second gradient, by name", function()
    local layer, x, g = layer_of(16)
    assert.error_matches(function()
      tensor.grad(layer(x), x, { grad_outputs = g, create_graph = true })
    end, "float8_linear: create_graph is not available through a layer in eight bits")
  end)

  it("have their gradients also when they ran in scopes", function()
    local layer, x, g = layer_of(16)
    layer(x):backward(g)
    local expected = layer.weight.grad:clone()
    layer.weight.grad = nil
    local y = tensor.scope(function() return tensor.scope(layer, x) end)
    y:backward(g)
    same(expected, layer.weight.grad)
  end)

  it("compute as they did before in a copy", function()
    local layer, x = layer_of(16)
    local copy = utils.deepcopy(layer)
    same(core.linear(x, layer.weight, layer.bias):detach(), copy(x):detach())
  end)
end)

describe("mixed_precision = 'fp8'", function()
  after_each(function() state.reset() end)

  it("computes the other layers in bfloat16, and its recipe is torchao's where nobody says which", function()
    local acc = accelerator()
    assert.are.equal("fp8", acc.mixed_precision)
    assert.is_true(acc.fp8_enabled and acc.native_amp)
    assert.are.equal("AO", acc.fp8_backend)
    assert.is_nil(acc.scaler)
    local losses, model, x = train(acc, 30)
    assert.are.same({ "2", "4" }, converted(model))
    assert.are.equal("float32", model(x).dtype)
    assert.is_true(losses[30] < losses[1] / 2)
  end)

  for name, handler in pairs {
    torchao = function() return utils.AORecipeKwargs() end,
    ["transformer-engine"] = function() return utils.TERecipeKwargs { amax_history_len = 4 } end,
  } do
    it("learns as bfloat16 does, by the recipe of " .. name, function()
      state.reset()
      local plain = train(accelerate.Accelerator { mixed_precision = "bf16" }, 40)
      local eight = train(accelerator(handler()), 40)
      assert.is_true(math.abs(eight[5] - plain[5]) < 0.05 * plain[5],
        ("%g beside %g"):format(eight[5], plain[5]))
      assert.is_true(eight[40] < 0.1 * eight[1])
      assert.are_not.equal(plain[40], eight[40])
    end)

    it("has the same bits with activations that are computed again, by the recipe of " .. name, function()
      local function model()
        local m = mlp()
        for _, i in ipairs { 3, 5 } do m[i] = nn.Sequential(m[i]) end
        return m
      end
      local plain = train(accelerator(handler()), 5, { model = model })
      local again = train(accelerator(handler()), 5, { model = function()
        local m = model()
        for _, i in ipairs { 3, 5 } do
          local inner = m[i]
          local forward = inner.forward
          inner.forward = function(...)
            if not core.is_grad_enabled() then return forward(...) end
            return nn.utils.checkpoint(forward, ...)
          end
        end
        return m
      end })
      assert.are.same(plain, again)
    end)
  end

  it("takes scales from earlier steps, as transformer-engine does", function()
    for _, case in ipairs { { "most_recent", 0, 1 }, { "max", 1, 1 }, { "max", -1, 2 } } do
      local algorithm, margin, interval = unpack(case)
      local acc = accelerator(utils.TERecipeKwargs { amax_compute_algo = algorithm, margin = margin,
        interval = interval, amax_history_len = 3 })
      local sizes, expected = {}, nil
      train(acc, 6, { after = function(step, model)
        local scales = models.scales_of(model)
        -- what the step computed with follows from the sizes of those before it
        if step > 1 and (step - 1) % interval == 0 then
          expected = {}
          for k = 1, 9 do
            local largest = sizes[step - 1][k]
            for back = 2, algorithm == "max" and 3 or 1 do
              largest = math.max(largest, sizes[step - back] and sizes[step - back][k] or 0)
            end
            expected[k] = (k % 3 == 0 and 57344 or 448) / 2 ^ margin / largest
          end
        end
        for k = 1, 9 do
          local got, want = scales.scale[k]:item(), expected and expected[k] or 1
          assert.is_true(math.abs(got / want - 1) < 1e-6,
            ("step %d, %d: %g for %g"):format(step, k, got, want))
        end
        sizes[step] = scales.amax:totable()
        for k = 1, 9 do assert.is_true(sizes[step][k] > 0) end
      end })
    end
  end)

  it("computes in evaluation in eight bits of torchao's recipe, and of transformer-engine's if it says so",
    function()
      local function differs(...)
        local acc = accelerator(...)
        local _, model, x = train(acc, 2)
        model:eval()
        local y
        core.no_grad(function() y = model(x) end)
        local plain, expected = mlp(), nil
        plain:load_state_dict(model:state_dict())
        core.no_grad(function() tensor.autocast(function() expected = plain(x):float() end) end)
        return y:ne(expected):any():item()
      end
      assert.is_true(differs())
      assert.is_false(differs(utils.TERecipeKwargs()))
      assert.is_true(differs(utils.TERecipeKwargs { use_autocast_during_eval = true }))
    end)

  it("leaves scales alone in evaluation and without gradients", function()
    local _, model, x = train(accelerator(utils.TERecipeKwargs { use_autocast_during_eval = true }), 3)
    local scales = models.scales_of(model)
    local before, updates = scales.amax:clone(), scales.updates
    model:eval()
    model(x * 100)
    model:train()
    core.no_grad(function() model(x * 100) end)
    same(before, scales.amax)
    assert.are.equal(updates, scales.updates)
  end)

  it("computes what override_linear_precision names in bfloat16", function()
    -- the gradient of a weight whose product stays: that of the rounded forward, plain
    local function grads(override)
      local acc = accelerator(utils.TERecipeKwargs { override_linear_precision = override })
      tensor.manual_seed(9)
      local model = nn.Sequential(nn.Linear(32, 32, { bias = false }))
      model = acc:prepare(model)
      local x = core.randn(16, 32, { requires_grad = true })
      local g = core.randn(16, 32)
      local y = model(x)
      y:backward(g)
      local w = model[1].weight
      return y:detach(), x.grad, w.grad, x:detach():to("bfloat16"), w:detach():to("bfloat16"),
        g:to("bfloat16")
    end
    local y, dx, dw, x, w, g = grads { true, true, true }
    same(core.linear(x, w):float(), y)
    same(g:matmul(w):float(), dx)
    same(g:t():matmul(x):float(), dw)
    local y8, dx8, dw8 = grads { false, false, false }
    for i, one in ipairs { { true, false, false }, { false, true, false }, { false, false, true } } do
      local got, plain, eight = { grads(one) }, { y, dx, dw }, { y8, dx8, dw8 }
      for k = 1, 3 do same(k == i and plain[k] or eight[k], got[k]) end
    end
  end)

  it("takes gradients in E4M3 where the format is E4M3", function()
    local acc = accelerator(utils.TERecipeKwargs { fp8_format = "e4m3" })
    local _, model = train(acc, 2)
    assert.are.equal(448, models.scales_of(model).most[3]:item())
    assert.are.equal(E4M3, float8.use_of(model[3]).recipe.backward)
  end)
end)

describe("a GPT of characters in eight bits", function()
  it("comes to the loss of bfloat16 after 500 steps, within 0.5 %", function()
    local function loss(mode, backend)
      local words = { "--cpu", "--mixed_precision", mode, "--num_cpu_threads_per_process", "1",
        "examples/char_gpt.lua", "--max_steps", "500", "--width", "32", "--layers", "2", "--context", "32",
        "--batch_size", "8", "--sample", "0" }
      local status, out, err = host.run(words, { env = { ACCELERATE_FP8_BACKEND = backend }, seconds = 300 })
      assert.are.equal(0, status, err)
      return tonumber(out:match "validation loss ([%d.]+)")
    end
    local plain, own, delayed = loss "bf16", loss("fp8", "ao"), loss("fp8", "te")
    assert.is_true(plain < 3)
    assert.is_true(math.abs(own / plain - 1) < 0.005, ("%g beside %g"):format(own, plain))
    assert.is_true(delayed / plain - 1 < 0.005, ("%g beside %g"):format(delayed, plain))
  end)
end)

describe("recipes of FP8", function()
  after_each(function() state.reset() end)

  it("have Accelerate's fields and defaults", function()
    local te = utils.TERecipeKwargs()
    assert.are.same({ amax_compute_algo = "most_recent", amax_history_len = 1024, fp8_format = "HYBRID",
      interval = 1, margin = 0, override_linear_precision = { false, false, false },
      use_autocast_during_eval = false, use_mxfp8_block_scaling = false }, te:to_dict())
    assert.are.same({ margin = 2 }, utils.TERecipeKwargs { margin = 2 }:to_kwargs())
    assert.are.equal("O2", utils.MSAMPRecipeKwargs().opt_level)
    assert.is_true(utils.AORecipeKwargs().pad_inner_dim)
    assert.is_false(utils.AORecipeKwargs { config = { pad_inner_dim = false } }.pad_inner_dim)
    assert.are.equal("TE", utils.FP8RecipeKwargs().backend)
    assert.are.equal("MSAMP", utils.FP8RecipeKwargs { backend = "msamp" }.backend)
    assert.are.equal("AO", utils.FP8BackendType.AO)
  end)

  it("take what is not given from variables", function()
    local _, out = run_with({ ACCELERATE_FP8_MARGIN = "3", ACCELERATE_FP8_INTERVAL = "2",
      ACCELERATE_FP8_FORMAT = "e4m3", ACCELERATE_FP8_AMAX_HISTORY_LEN = "7",
      ACCELERATE_FP8_AMAX_COMPUTE_ALGO = "MAX", ACCELERATE_FP8_OVERRIDE_WGRAD = "true",
      ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL = "1", ACCELERATE_FP8_OPT_LEVEL = "O1",
      ACCELERATE_FP8_PAD_INNER_DIM = "false", ACCELERATE_FP8_BACKEND = "te",
      ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER = "false" }, [[
        local accelerate = require "accelerate"
        local utils = accelerate.utils
        local te, ao = utils.TERecipeKwargs(), utils.AORecipeKwargs()
        print(te.margin, te.interval, te.fp8_format, te.amax_history_len, te.amax_compute_algo,
          te.override_linear_precision[1], te.override_linear_precision[3], te.use_autocast_during_eval,
          utils.MSAMPRecipeKwargs().opt_level, ao.pad_inner_dim, ao.enable_fsdp_float8_all_gather)
        print(utils.TERecipeKwargs { margin = 0 }.margin)
        print(accelerate.Accelerator { mixed_precision = "fp8" }.fp8_backend)
      ]])
    assert.are.equal("3\t2\tE4M3\t7\tmax\tfalse\ttrue\ttrue\tO1\tfalse\tfalse\n0\nTE\n", out)
  end)

  it("say what is wrong, and what is not there", function()
    for message, call in pairs {
      ["fp8_format: expected one of HYBRID, E4M3, E5M2, got 'E3M4'"] = function()
        utils.TERecipeKwargs { fp8_format = "E3M4" }
      end,
      ["no product takes two matrices of E5M2"] = function() utils.TERecipeKwargs { fp8_format = "E5M2" } end,
      ["use_mxfp8_block_scaling: scales of blocks of 32 are not there"] = function()
        utils.TERecipeKwargs { use_mxfp8_block_scaling = true }
      end,
      ["expected three booleans"] = function()
        utils.TERecipeKwargs { override_linear_precision = { true, false } }
      end,
      ["amax_compute_algo: expected one of most_recent, max, got 'mean'"] = function()
        utils.FP8RecipeKwargs { amax_compute_algo = "mean" }
      end,
      ["AORecipeKwargs: config: "] = function() utils.AORecipeKwargs { config = { emulate = true } } end,
      ["needs mixed_precision = 'fp8', got 'bf16'"] = function()
        state.reset()
        accelerate.Accelerator { mixed_precision = "bf16", kwargs_handlers = { utils.AORecipeKwargs() } }
      end,
      ["only one recipe of FP8 can be given"] = function()
        accelerator(utils.AORecipeKwargs(), utils.TERecipeKwargs())
      end,
      ["the recipe of MS-AMP (opt_level = 'O2') is not there"] = function()
        accelerator(utils.MSAMPRecipeKwargs())
      end,
      ["the recipe of MS-AMP (opt_level = 'O1') is not there"] = function()
        accelerator(utils.FP8RecipeKwargs { backend = "MSAMP", opt_level = "O1" })
      end,
    } do
      local ok, err = pcall(call)
      assert.is_false(ok, message)
      assert.truthy(tostring(err):find(message, 1, true), tostring(err))
    end
  end)
end)

describe("a checkpoint in eight bits", function()
  local name = os.tmpname()
  local folder = name .. ".dir"
  teardown(function() os.execute(("rm -rf '%s' '%s'"):format(name, folder)) end)
  after_each(function() state.reset() end)

  it("has the scales between steps, and a resumed run goes on with the same bits", function()
    local handler = { amax_history_len = 5, amax_compute_algo = "max" }
    local first = accelerator(utils.TERecipeKwargs(handler))
    local whole = train(first, 8, { after = function(step)
      if step == 4 then first:save_state(folder) end
    end })
    local acc = accelerator(utils.TERecipeKwargs(handler))
    tensor.manual_seed(5)
    local model = mlp()
    local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
    local x = core.randn(48, 32)
    local y = x:matmul(core.randn(32, 10)):argmax(2)
    model, optimizer = acc:prepare(model, optimizer)
    acc:load_state(folder)
    for step = 5, 8 do
      local loss = nn.functional.cross_entropy(model(x), y)
      acc:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      assert.are.equal(whole[step], loss:item())
    end
    local other = accelerator(utils.TERecipeKwargs { amax_history_len = 6 })
    local fresh = other:prepare(mlp())
    other:prepare(optim.SGD(fresh:parameters(), { lr = 0.1, momentum = 0.9 }))
    assert.error_matches(function() other:load_state(folder) end,
      "the history of eight bits must be a tensor %[6, 9%], got %[5, 9%]")
  end)
end)

describe("eight bits on two ranks", function()
  local PROGRAM = [[
    local accelerate = require "accelerate"
    local models = require "accelerate.precision.float8_models"
    local nn, optim, utils = accelerate.nn, accelerate.optim, accelerate.utils
    local function run(handler, more)
      core.manual_seed(7)
      local options = { mixed_precision = "fp8", kwargs_handlers = { handler } }
      for key, value in pairs(more or {}) do options[key] = value end
      require("accelerate.state").reset()
      local acc = accelerate.Accelerator(options)
      local model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 16))
      local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
      local x = core.randn(64, 32)
      local y = x:matmul(core.randn(32, 16)):argmax(2)
      model, optimizer = acc:prepare(model, optimizer)
      local part = function(t) return t:narrow(1, 1 + rank * 32, 32) end
      local first, last
      for step = 1, 40 do
        local loss = nn.functional.cross_entropy(model(part(x) * (rank + 1)), part(y))
        acc:backward(loss)
        optimizer:step()
        optimizer:zero_grad()
        last = acc:gather(loss:detach():view(1)):mean():item()
        first = first or last
      end
      check(last < first / 2, ("%g after %g"):format(last, first))
      return model, acc
    end
  ]]

  it("take their scales from the largest sizes of all", function()
    local out = ranks.ok(2, PROGRAM .. [[
      local model, acc = run(utils.TERecipeKwargs { amax_history_len = 3 })
      local scales = models.scales_of(model)
      local all = acc:gather(scales.scale:unsqueeze(1))
      check(all[1]:eq(all[2]):all():item(), "scales differ")
      local sizes = acc:gather(scales.history:narrow(1, 1, 1))
      check(sizes[1]:eq(sizes[2]):all():item(), "histories differ")
      if rank == 0 then print "equal" end
    ]], { launch = { "--cpu" } })
    assert.are.equal("equal\n", out)
  end)

  it("train sharded, with either way of gathering", function()
    local out = ranks.ok(2, PROGRAM .. [[
      local plugin = { fsdp_version = 2, auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = 100 }
      for _, handler in ipairs { utils.AORecipeKwargs(), utils.TERecipeKwargs { amax_history_len = 3 },
        utils.AORecipeKwargs { enable_fsdp_float8_all_gather = false } } do
        run(handler, { fsdp_plugin = plugin })
      end
      if rank == 0 then print "trained" end
    ]], { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = "0" } })
    assert.are.equal("trained\n", out)
  end)
end)
