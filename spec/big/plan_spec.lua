local accelerate = require "accelerate"
local host = require "spec.support.host"
local models, nn, utils = accelerate.models, accelerate.nn, accelerate.utils

local SPEEDS = { cpu = 1e6, [0] = 1e9, transfer = 1e5, disk = 1e4 }

-- 100 rows of an embedding, and two layers of 4 x 4, in float32
local function net()
  return nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, 4, { bias = false }),
    nn.Linear(4, 4, { bias = false }))
end

local function plan(map, opts)
  local o = { device_map = map, bandwidth = SPEEDS }
  for key, value in pairs(opts or {}) do o[key] = value end
  return utils.plan_device_map(accelerate.init_empty_weights(net), o)
end

local function near(expected, got) assert.near(expected, got, 1e-9 + 1e-6 * expected) end

describe("plan_device_map", function()
  it("counts bytes, and of embeddings only rows for a token", function()
    local p = plan { [""] = "cpu" }
    assert.same({ 1600 + 128, 128 }, { p.bytes, p.read })
    near(128 / 1e6, p.seconds)
    near(p.seconds, p.first)
    assert.equal(0, p.ahead)
  end)

  it("counts an embedding that is the head, too", function()
    local model = models.GPT2LMHeadModel { n_layer = 1, n_embd = 8, n_head = 1, vocab_size = 50,
      n_positions = 16 }
    local p = utils.plan_device_map(model, { device_map = { [""] = "cpu" }, bandwidth = SPEEDS })
    assert.equal(utils.compute_module_sizes(model)[""], p.bytes)
    assert.equal(p.bytes - 16 * 8 * 4, p.read)
  end)

  it("adds what computing, copies and files take", function()
    local p = plan { ["0"] = 0, ["1"] = "cpu", ["2"] = "disk" }
    local by = {}
    for _, part in ipairs(p.parts) do by[part.place] = part end
    near(0, by["cuda:0"].seconds)
    near(64 / 1e5, by.cpu.seconds)
    near(64 / 1e5, by.disk.seconds)
    near(64 / 1e4, by.disk.first)
    near(128 / 1e5, p.seconds)
    near(64 / 1e5 + 64 / 1e4, p.first)
    assert.equal(3 * 1600, p.ahead)
  end)

  it("goes by the types that weights get", function()
    near(64 / 1e6, plan({ [""] = "cpu" }, { dtype = "float16" }).seconds)
    assert.equal(800 + 64, plan({ [""] = "cpu" }, { dtype = "float16" }).bytes)
  end)

  it("measures speeds that are not stated, of codes too", function()
    local model = utils.load_and_quantize_model(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)),
      utils.BnbQuantizationConfig { load_in_4bit = true, torch_dtype = "fp32" })
    local p = utils.plan_device_map(model)
    assert.is_true(p.seconds > 0 and p.seconds < 1e-3)
    assert.equal(utils.compute_module_sizes(model)[""], p.bytes)
    assert.matches("computed on where it is, [%d.]+ %a?B/s, measured", tostring(p))
  end)

  it("takes a dispatched model's map and file, and prints them", function()
    host.in_folder(function(root)
      local model = net()
      utils.save(model:state_dict(), root .. "/model.safetensors")
      accelerate.load_checkpoint_and_dispatch(model, root .. "/model.safetensors",
        { device_map = { [""] = "disk" } })
      local p = utils.plan_device_map(model, { bandwidth = { cpu = 1e6 } })
      assert.same({ [""] = "disk" }, { [""] = p.device_map[""] })
      assert.is_true(p.first == nil or p.first >= p.seconds)
      local stated = tostring(utils.plan_device_map(model, { bandwidth = SPEEDS }))
      assert.equal([[
1.7 KB of weights; a token of one row reads 128 bytes
  disk        1.7 KB     0.1 ms  the first time out of its file, 10.0 KB/s, stated, then ]] .. [[
computed on where it is mapped
on their way: at most 4.8 KB, a block and two ahead
expected: 0.1 ms a token, 12.8 ms the first one]], stated)
    end)
  end)

  it("says that a disk's speed is not known", function()
    local p = plan({ [""] = "disk" }, { bandwidth = { cpu = 1e6 } })
    assert.is_nil(p.first)
    assert.matches("whose speed is not known %(give checkpoint or bandwidth.disk%)", tostring(p))
    assert.matches("expected: [%d.]+ ms a token, unknown the first one", tostring(p))
  end)

  it("takes words for maps, and refuses maps and speeds that are none", function()
    assert.same({ cpu = true }, { [plan("auto", { max_memory = { cpu = 1e6 } }).parts[1].place] = true })
    assert.error_matches(function() plan { ["0"] = "cpu" } end,
      "plan_device_map: device_map gives '1.weight' no")
    assert.error_matches(function() plan({ [""] = "cpu" }, { bandwidth = { cpu = "fast" } }) end,
      "plan_device_map: bandwidth%[cpu%]")
    assert.error_matches(function() utils.plan_device_map(net()) end, "the model has no hf_device_map")
    assert.error_matches(function() plan({ [""] = 7 }, { bandwidth = { cpu = 1 } }) end,
      "plan_device_map: device_map: expected the number of a GPU")
  end)
end)
