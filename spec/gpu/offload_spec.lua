-- Weights that come to a device when they are used: from memory of the host and from files.
local device = require "spec.support.device"
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local homes = require "accelerate.big_modeling.homes"
local hooks = require "accelerate.hooks"
local models, nn, tensor = accelerate.models, accelerate.nn, accelerate.tensor

local CONFIG = { hidden_size = 32, intermediate_size = 64, num_hidden_layers = 6, num_attention_heads = 4,
  num_key_value_heads = 2, vocab_size = 60, max_position_embeddings = 32 }
local TOLERANCE = device.fake and 0 or 1e-5

describe("a model that a GPU computes #cuda", function()
  if not device.name then return pending("needs a CUDA device: " .. tostring(device.reason)) end
  local folder, ids, expected
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    local model = models.LlamaForCausalLM(CONFIG):eval()
    model:save_pretrained(folder)
    ids = tensor({ { 1, 2, 3, 4, 5 } }):long()
    expected = model(ids).logits:detach()
  end)
  after_each(function() os.execute(("rm -rf '%s'"):format(folder)) end)

  local MAP = { ["model.embed_tokens"] = 0, ["model.layers.0"] = 0, ["model.layers.1"] = "cpu",
    ["model.layers.2"] = "cpu", ["model.layers.3"] = "disk", ["model.layers.4"] = "disk",
    ["model.layers.5"] = "disk", ["model.norm"] = 0, lm_head = "disk" }

  local function load(map, opts)
    opts = opts or {}
    opts.device_map = map
    return models.from_pretrained(folder, opts)
  end

  it("takes its weights from the device, the host and files, and gives results back", function()
    for _, map in ipairs { MAP, { [""] = "disk" } } do
      local options = map[""] and { device_map = map } or nil
      local model = options and accelerate.init_empty_weights(models.LlamaForCausalLM, CONFIG):eval()
        or load(map)
      if options then
        accelerate.load_checkpoint_in_model(model, folder, { device_map = map })
        accelerate.dispatch_model(model, map, { main_device = 0 })
      end
      for _ = 1, 3 do
        local y = model(ids).logits
        assert.equal("cpu", y.device)
        device.agree(y, expected, TOLERANCE, "logits")
      end
    end
  end)

  it("takes codes and scales from the device, the host and files", function()
    local wide = {}
    for key, value in pairs(CONFIG) do wide[key] = value end
    wide.hidden_size, wide.intermediate_size = 64, 96
    models.LlamaForCausalLM(wide):eval():save_pretrained(folder)
    for _, kind in ipairs { { load_in_4bit = true, bnb_4bit_compute_dtype = "fp32" }, { load_in_8bit = true },
      { load_in_4bit = true, bnb_4bit_use_double_quant = true, bnb_4bit_compute_dtype = "fp32" } } do
      local how = { quantization_config = accelerate.utils.BnbQuantizationConfig(kind), dtype = "float32" }
      local plain = models.from_pretrained(folder, how)
      plain:save_pretrained(folder .. "/encoded")
      local want = plain:to(device.name)(ids:to(device.name)).logits:cpu()
      for _, path in ipairs { folder, folder .. "/encoded" } do
        local model = models.from_pretrained(path, { device_map = MAP, dtype = "float32",
          quantization_config = path == folder and how.quantization_config or nil,
          offload_folder = folder .. "/offload" })
        for _ = 1, 3 do device.agree(model(ids).logits, want, TOLERANCE, "logits") end
        assert.is_true(homes.stats(model)[device.name].weights > 30)
        os.execute(("rm -rf '%s/offload'"):format(folder))
      end
    end
  end)

  it("has names, shapes and elements of weights that are away", function()
    local model = load(MAP)
    local plain = models.from_pretrained(folder)
    for name, t in pairs(plain:state_dict()) do
      local own = model:state_dict()[name]
      assert.equal(device.name, own.device, name)
      assert.same(t.shape, own.shape)
      assert.same(t:tolist(), own:cpu():tolist())
    end
    model:save_pretrained(folder .. "/again")
    device.agree(models.from_pretrained(folder .. "/again")(ids).logits, expected, 0, "saved")
  end)

  it("holds a block and what was fetched ahead, and no more", function()
    local model = load(MAP)
    for _ = 1, 3 do model(ids) end
    local stats = homes.stats(model)[device.name]
    local block = accelerate.utils.compute_module_sizes(model)["model.layers.3"]
    assert.equal(46, stats.weights)
    assert.is_true(stats.here_most <= 3 * block, ("%d of a block of %d"):format(stats.here_most, block))
    assert.is_true(stats.guessed > 0.9 * stats.loads)
  end)

  it("casts weights on their way", function()
    local half = models.from_pretrained(folder, { dtype = "bfloat16", device = device.name })
    local y = half(ids:to(device.name)).logits:cpu()
    local model = load(MAP, { dtype = "bfloat16" })
    device.agree(model(ids).logits, y, TOLERANCE, "bfloat16")
  end)

  it("brings its weights back when the hooks are taken off", function()
    local net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    local x = tensor.ones(1, 4)
    local y = net(x):detach()
    accelerate.cpu_offload(net, { execution_device = 0 })
    assert.equal(device.name, net[1].weight.device)
    device.agree(net(x), y, TOLERANCE, "offloaded")
    hooks.remove_hook_from_submodules(net)
    assert.equal("cpu", net[1].weight.device)
    device.agree(net(x), y, 0, "brought back")
  end)

  it("passes gradients through weights that have left", function()
    local net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    net:requires_grad_(false)
    local function gradient(where)
      local x = nn.Parameter(tensor.ones(2, 8):to(where))
      net(x):sum():backward()
      return x.grad:cpu()
    end
    local plain = gradient "cpu"
    accelerate.cpu_offload(net, { execution_device = 0 })
    homes.tighten(net)
    for _ = 1, 2 do device.agree(gradient(device.name), plain, TOLERANCE, "gradient") end
  end)

  it("is refused in a captured step, by name", function()
    if device.fake then return pending("the fake device captures nothing") end
    local net = accelerate.cpu_offload(nn.Linear(4, 4), { execution_device = 0 })
    local x = tensor.ones(1, 4):to(device.name)
    local step = accelerate.utils.capture(function() return net(x) end)
    assert.error_matches(function() for _ = 1, 4 do step() end end,
      "offloaded weight is needed while a step is captured")
  end)

  it("stays on the device after a call, until its hook offloads it", function()
    local first, first_hook = accelerate.cpu_offload_with_hook(nn.Linear(3, 3), { execution_device = 0 })
    local second, second_hook = accelerate.cpu_offload_with_hook(nn.Linear(3, 2),
      { execution_device = 0, prev_module_hook = first_hook })
    local x = first(tensor.ones(1, 3))
    assert.equal(device.name, first.weight.device)
    second(x)
    assert.same({ "cpu", device.name }, { first.weight.device, second.weight.device })
    second_hook:offload()
    assert.equal("cpu", second.weight.device)
  end)

  it("leaves no memory behind", function()
    collectgarbage() collectgarbage()
    local before = core.memory_stats(device.name).live_bytes
    local model = load(MAP)
    model(ids)
    model = nil -- luacheck: ignore 311
    collectgarbage() collectgarbage()
    assert.equal(before, core.memory_stats(device.name).live_bytes)
    assert.is_true(fs.is_dir(folder))
  end)
end)
