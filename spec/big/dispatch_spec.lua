local accelerate = require "accelerate"
local core = require "accelerate.core"
local ffi = require "ffi"
local fs = require "accelerate.utils.fs"
local homes = require "accelerate.big_modeling.homes"
local hooks = require "accelerate.hooks"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local messages = require "spec.support.messages"
local models, nn, tensor, utils = accelerate.models, accelerate.nn, accelerate.tensor, accelerate.utils

ffi.cdef "int truncate(const char *path, long size);"

local CONFIG = { hidden_size = 32, intermediate_size = 64, num_hidden_layers = 4, num_attention_heads = 4,
  num_key_value_heads = 2, vocab_size = 60, max_position_embeddings = 32 }
local function new_folder()
  local path = os.tmpname()
  os.remove(path)
  assert(fs.make_dirs(path))
  return path
end

local function remove(path) os.execute(("rm -rf '%s'"):format(path)) end

local IDS = tensor({ { 1, 2, 3, 4, 5 } }):long()

describe("a model with weights on disk", function()
  local folder, expected
  before_each(function()
    folder = new_folder()
    local model = models.LlamaForCausalLM(CONFIG):eval()
    model:save_pretrained(folder .. "/model")
    expected = model(IDS).logits:tolist()
  end)
  after_each(function() remove(folder) end)

  local function load(map, opts)
    opts = opts or {}
    opts.device_map = map
    local model = accelerate.init_empty_weights(models.LlamaForCausalLM, CONFIG):eval()
    return accelerate.load_checkpoint_and_dispatch(model, folder .. "/model", opts)
  end

  it("computes the same bits from the file, whole or with what memory has not kept", function()
    local model = load { [""] = "disk" }
    assert.same({ [""] = "disk" }, { [""] = model.hf_device_map[""] })
    assert.same(expected, model(IDS).logits:tolist())
    homes.tighten(model)
    for _ = 1, 2 do assert.same(expected, model(IDS).logits:tolist()) end
    local stats = homes.stats(model).cpu
    assert.is_true(stats.here < stats.bytes / 2)
    assert.is_true(stats.left > stats.weights)
  end)

  it("takes no memory for what rests in the file, and knows the order of its weights", function()
    collectgarbage() collectgarbage()
    local before = core.memory_stats("cpu").live_bytes
    local model = load { [""] = "disk" }
    collectgarbage() collectgarbage()
    assert.is_true(core.memory_stats("cpu").live_bytes - before < 5000)
    homes.tighten(model)
    for _ = 1, 3 do model(IDS) end
    local stats = homes.stats(model).cpu
    assert.is_true(stats.guessed > 0.95 * stats.loads)
  end)

  it("is loaded by from_pretrained, with words for maps and in another type", function()
    for _, map in ipairs { "auto", "balanced", "sequential", "balanced_low_0", { [""] = "disk" } } do
      local model = models.from_pretrained(folder .. "/model", { device_map = map })
      assert.same(expected, model(IDS).logits:tolist())
      assert.is_not_nil(model.hf_device_map[""])
    end
    local half = models.from_pretrained(folder .. "/model", { dtype = "bfloat16" })(IDS).logits:tolist()
    local model = models.from_pretrained(folder .. "/model",
      { dtype = "bfloat16", device_map = { [""] = "disk" } })
    assert.equal("bfloat16", model.lm_head.weight.dtype)
    homes.tighten(model)
    for _ = 1, 2 do assert.same(half, model(IDS).logits:tolist()) end
  end)

  it("is split over the CPU and the disk as limits say, and generates the same tokens", function()
    local bytes = utils.compute_module_sizes(models.LlamaForCausalLM(CONFIG))[""]
    local whole = models.from_pretrained(folder .. "/model")
    local model = models.from_pretrained(folder .. "/model", { device_map = "auto",
      max_memory = { cpu = math.floor(0.6 * bytes) } })
    local places = {}
    for _, place in pairs(model.hf_device_map) do places[place] = true end
    assert.same({ cpu = true, disk = true }, places)
    homes.tighten(model)
    local how = { max_new_tokens = 12, do_sample = false }
    assert.same(whole:generate(IDS, how):tolist(), model:generate(IDS, how):tolist())
  end)

  it("keeps names, shapes, elements and state dicts, and is saved whole", function()
    local model = load { [""] = "disk" }
    homes.tighten(model)
    local plain = models.from_pretrained(folder .. "/model")
    for name, t in pairs(plain:state_dict()) do
      local own = model:state_dict()[name]
      assert.same(t.shape, own.shape)
      assert.equal("cpu", own.device)
      assert.same(t:tolist(), own:tolist())
    end
    model:save_pretrained(folder .. "/again")
    assert.same(expected, models.from_pretrained(folder .. "/again")(IDS).logits:tolist())
  end)

  it("keeps what is written into a weight, here and not in the file", function()
    local model = load { [""] = "disk" }
    homes.tighten(model)
    core.no_grad(function() model.lm_head.weight:mul_(2) end)
    for _ = 1, 2 do model(IDS) end
    local plain = models.from_pretrained(folder .. "/model")
    assert.same((plain.lm_head.weight * 2):tolist(), model.lm_head.weight:tolist())
  end)

  it("passes gradients through to what is trained", function()
    local net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    utils.save(net:state_dict(), folder .. "/net.safetensors")
    local function gradient(model)
      model:requires_grad_(false)
      local x = nn.Parameter(tensor.ones(2, 8))
      model(x):sum():backward()
      return x.grad:tolist()
    end
    local expected_gradient = gradient(net)
    local model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    accelerate.load_checkpoint_and_dispatch(model, folder .. "/net.safetensors",
      { device_map = { [""] = "disk" } })
    homes.tighten(model)
    for _ = 1, 2 do assert.same(expected_gradient, gradient(model)) end
  end)

  it("gets an index in Accelerate's form that names the files", function()
    load({ [""] = "disk" }, { offload_folder = folder .. "/offload" })
    local index = json.decode((fs.read(folder .. "/offload/index.json")))
    assert.equal("lm_head.weight", index["lm_head.weight"].weight_name)
    assert.equal(folder .. "/model/model.safetensors", index["lm_head.weight"].safetensors_file)
    local loader = utils.OffloadedWeightsLoader { save_folder = folder .. "/offload" }
    assert.same({ 60, 32 }, loader["lm_head.weight"].shape)
  end)

  it("cannot be moved or cast, until its hooks are taken off", function()
    local model = load { [""] = "disk" }
    local said = messages.said(function()
      assert.error_matches(function() model:to("float64") end,
        "weights of the model are offloaded, so it cannot be cast")
      assert.error_matches(function() model:cpu() end, "cannot be moved")
    end)
    assert.matches("it is not meant to be moved", said)
    hooks.remove_hook_from_submodules(model)
    assert.same(expected, model(IDS).logits:tolist())
    model:to("float64")
    assert.equal("float64", model.lm_head.weight.dtype)
  end)

  it("says that a file was truncated, instead of computing with zeros", function()
    for _, tight in ipairs { true, false } do
      local model = load { [""] = "disk" }
      if tight then homes.tighten(model) end
      model(IDS)
      local path = folder .. "/model/model.safetensors"
      local text = assert(fs.read(path))
      assert(io.open(path, "wb")):close()
      messages.raises("an offloaded weight is in it, and it can no longer be read to its end", model, IDS)
      model = nil -- luacheck: ignore 311
      collectgarbage() collectgarbage()
      local file = assert(io.open(path, "wb"))
      file:write(text)
      file:close()
    end
  end)

  -- Runs fn(model) with a model in a copy of its file, which is `by` bytes shorter by then.
  local function shortened(by, fn)
    local copy = folder .. "/short"
    os.execute(("cp -r '%s/model' '%s'"):format(folder, copy))
    local model = models.LlamaForCausalLM.from_pretrained(copy, { device_map = { [""] = "disk" } })
    model(IDS)
    local path = copy .. "/model.safetensors"
    local size = #fs.read(path)
    assert(ffi.C.truncate(path, by and size - by or 1000) == 0)
    fn(model)
    fs.remove_tree(copy)
  end

  it("is not computed with and not saved once its file was truncated, however often one tries", function()
    shortened(nil, function(model)
      local short = "an offloaded weight is in it, and it can no longer be read to its end"
      messages.raises(short, model, IDS)
      for _ = 1, 2 do
        messages.raises(short, model, IDS)
        messages.raises(short, model.save_pretrained, model, folder .. "/saved")
        messages.raises(short, function()
          tensor.no_grad(function() model.model.norm.weight:add_(1) end)
        end)
      end
      assert.is_false(fs.exists(folder .. "/saved/model.safetensors"))
    end)
  end)

  it("keeps the end of a file that loses its last bytes", function()
    shortened(8, function(model) assert.same(expected, model(IDS).logits:tolist()) end)
  end)

  it("is loaded from PyTorch's files through an offload folder", function()
    local model = models.LlamaForCausalLM(CONFIG):eval()
    model:save_pretrained(folder .. "/bin", { safe_serialization = false })
    local function with(opts)
      local empty = accelerate.init_empty_weights(models.LlamaForCausalLM, CONFIG):eval()
      opts.device_map = { [""] = "disk" }
      return accelerate.load_checkpoint_and_dispatch(empty, folder .. "/bin", opts)
    end
    assert.error_matches(function() with {} end, "is no safetensors file: give an offload_folder")
    local loaded = with { offload_folder = folder .. "/offload" }
    assert.is_true(fs.is_file(folder .. "/offload/lm_head.weight.dat"))
    assert.same(model(IDS).logits:tolist(), loaded(IDS).logits:tolist())
  end)

  it("refuses maps that leave tensors out, and words that it does not know", function()
    assert.error_matches(function() load { model = "cpu" } end, "device_map gives 'lm_head.weight' no device")
    assert.error_matches(function() load "automatic" end,
      "load_checkpoint_and_dispatch: device_map: expected a table, or one of \"auto\"")
    assert.error_matches(function() load { [""] = "gpu" } end, "device_map: expected the number of a GPU")
    assert.error_matches(function() models.from_pretrained(folder .. "/model", { max_memory = {} }) end,
      "max_memory goes with a device_map")
  end)
end)

describe("memory beyond the weights' homes", function()
  local folder
  setup(function()
    folder = new_folder()
    models.LlamaForCausalLM { hidden_size = 256, intermediate_size = 1024, num_hidden_layers = 14,
      num_attention_heads = 4, num_key_value_heads = 4, vocab_size = 500,
      max_position_embeddings = 32 }:save_pretrained(folder)
  end)
  teardown(function() remove(folder) end)

  -- Runs a program over the folder; returns the words that it prints.
  local function words(program)
    local status, out, err = host.run { "-e", ("local folder = %q\n"):format(folder) .. program }
    assert(status == 0, err)
    local list = {}
    for word in out:gmatch "%S+" do list[#list + 1] = word end
    return list
  end

  local START = [[
    local models = require("accelerate").models
    local own_memory = require "spec.support.own_memory"
    local function private() return own_memory.private(folder) end
    models.LlamaForCausalLM { hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
      num_attention_heads = 1, num_key_value_heads = 1, vocab_size = 8 }
    local before = private()
  ]]

  it("is little: from_pretrained holds a model once", function()
    local found = words(START .. [[
      local model = models.from_pretrained(folder)
      print(private() - before, require("accelerate.utils").compute_module_sizes(model)[""])
    ]])
    assert.is_true(tonumber(found[1]) < 1.2 * found[2], table.concat(found, " of "))
  end)

  it("is a block and what is fetched ahead, and generates the same bits", function()
    local program = START .. [[
      local tensor = require "accelerate.tensor"
      local core, homes = require "accelerate.core", require "accelerate.big_modeling.homes"
      if limit then core.set_memory_limit(limit) end
      local model = models.from_pretrained(folder, { device_map = { [""] = limit and "disk" or "cpu" } })
      if limit then homes.tighten(model) end
      local ids = tensor({ { 1, 2, 3 } }):long()
      for _, token in ipairs(model:generate(ids, { max_new_tokens = 6, eos_token_id = -1 }):tolist()[1]) do
        print(token)
      end
      print(("%.17g"):format(model(ids).logits:double():square():sum():item()))
      print(private() - before)
    ]]
    local unlimited, limited = words("local limit\n" .. program), words("local limit = 24e6\n" .. program)
    assert.is_true(tonumber(table.remove(unlimited)) > 55e6)
    local most = tonumber(table.remove(limited))
    local shadow = host.path:find("asan", 1, true) and 10e6 or 0 -- what the sanitizer keeps beside it
    assert.is_true(most < 30e6 + shadow, tostring(most))
    assert.same(unlimited, limited)
  end)
end)

describe("an offload folder", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() remove(folder) end)

  local function network()
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)):eval()
  end

  it("is written by disk_offload in Accelerate's form, and read again", function()
    local model, x = network(), tensor.ones(2, 6)
    local y = model(x):tolist()
    local weight = model[1].weight:tolist()
    accelerate.disk_offload(model, folder)
    assert.same({ dtype = "float32", shape = { 8, 6 } },
      json.decode((fs.read(folder .. "/index.json")))["0.weight"])
    assert.equal(8 * 6 * 4, #fs.read(folder .. "/0.weight.dat"))
    assert.same(y, model(x):tolist())
    local other = network()
    accelerate.disk_offload(other, folder)
    assert.same(weight, other[1].weight:tolist())
  end)

  it("is written by dispatch_model for what lies in memory", function()
    local model, x = network(), tensor.ones(2, 6)
    local y = model(x):tolist()
    assert.error_matches(function()
      accelerate.dispatch_model(model, { ["0"] = "disk", ["1"] = "cpu", ["2"] = "cpu" })
    end,
      "device_map puts these on disk: 0; give an offload_dir")
    accelerate.dispatch_model(model, { ["0"] = "disk", ["1"] = "cpu", ["2"] = "cpu" },
      { offload_dir = folder })
    assert.is_true(fs.is_file(folder .. "/0.weight.dat"))
    assert.is_false(fs.is_file(folder .. "/2.weight.dat"))
    assert.same(y, model(x):tolist())
  end)
end)

describe("cpu_offload", function()
  it("leaves a model that computes on the CPU where it is", function()
    local model, x = nn.Linear(3, 2), tensor.ones(1, 3)
    local y = model(x):tolist()
    accelerate.cpu_offload(model, { execution_device = "cpu" })
    assert.same(y, model(x):tolist())
  end)

  it("with a hook brings a model back on request", function()
    local model, hook = accelerate.cpu_offload_with_hook(nn.Linear(3, 2), { execution_device = "cpu" })
    model(tensor.ones(1, 3))
    hook:offload()
    hook:remove()
    assert.is_nil(model._values._hf_hook)
  end)
end)
