-- Models' weights in files, and what save_state will take along.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.sharding_reference"
local state = require "accelerate.state"

describe("what save_state will take along", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("is registered in order, and only what can be saved", function()
    local a = accelerate.Accelerator()
    local plain = { state_dict = function() return {} end, load_state_dict = function() end }
    local model = nn.Linear(2, 2)
    a:register_for_checkpointing(plain, model)
    a:register_for_checkpointing()
    assert.are.same({ plain, model }, a._custom_objects)
    local ok, message = pcall(a.register_for_checkpointing, a, plain, 5, {}, nil, { state_dict = print },
      "text", core.ones(2), print, plain)
    assert.is_false(ok)
    for _, line in ipairs { "object 2, 5", "object 3, a table", "object 4, nil", "object 5, a table",
      "object 6, 'text'",
      "object 7, a float32 tensor of shape %[2%]",
      "object 8, a function" } do assert.matches("\n  %- " .. line, message) end
    assert.is_nil(message:find("object 1,", 1, true) or message:find("object 9,", 1, true))
    assert.are.equal(2, #a._custom_objects)  -- all or none
    a:free_memory()
    assert.are.same({ plain, model }, a._custom_objects)
  end)

  it("can be changed by hooks, which a handle removes", function()
    local a = accelerate.Accelerator()
    local function one() end
    for name, list in pairs { register_save_state_pre_hook = "_save_state_pre_hooks",
      register_load_state_pre_hook = "_load_state_pre_hooks" } do
      local first, second, third = a[name](a, one), a[name](a, one), a[name](a, print)
      assert.are.equal(3, #a[list])
      second.remove()
      second:remove()  -- once more: nothing
      assert.are.same({ { one }, { print } }, a[list])
      first.remove()
      third.remove()
      assert.are.same({}, a[list])
      for _, wrong in ipairs { 5, "hook", {} } do
        assert.error_matches(function() a[name](a, wrong) end, name .. ": hook must be a function")
      end
      assert.error_matches(function() a[name](a) end, name .. ": hook must be a function, got nil")
    end
  end)
end)

describe("weights in files", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  local function net() return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) end

  local function same(a, b)
    for i, p in ipairs(a:parameters()) do
      if (p - b:parameters()[i]):abs():max():item() ~= 0 then return false end
    end
    return true
  end

  it("come back from one file", function()
    host.in_folder(function(folder)
      local model, other = accelerator:prepare(net()), net()
      accelerator:save_model(model, folder .. "/new/out")
      assert.are.same({ "model.safetensors" }, fs.list(folder .. "/new/out"))
      assert.is_false(same(model, other))
      accelerate.load_checkpoint_in_model(other, folder .. "/new/out", { strict = true })
      assert.is_true(same(model, other))
      accelerate.utils.load_checkpoint_in_model(other, folder .. "/new/out/model.safetensors")
      local list, metadata = core.safetensors_load(folder .. "/new/out/model.safetensors")
      assert.are.equal("pt", metadata.format)
      assert.are.equal(4, #list)
    end)
  end)

  it("are cut into shards as huggingface_hub cuts them", function()
    local checkpoint = require "accelerate.weights"
    for _, case in ipairs(reference.cases("shards")) do
      local list = {}
      for i = 2, #case.arguments do
        list[i - 1] = { i - 2, core.empty(case.arguments[i], { dtype = "uint8" }) }
      end
      local text = {}
      for i, shard in ipairs((checkpoint.split_into_shards(list, case.arguments[1]))) do
        local names = {}
        for k, item in ipairs(shard) do names[k] = item[1] end
        text[i] = table.concat(names, ",")
      end
      assert.are.equal(case.fields[1], table.concat(text, " "), case.name)
    end
  end)

  it("come back from shards, and an index names them", function()
    host.in_folder(function(folder)
      local model, other = net(), net()
      accelerator:save_model(model, folder)
      accelerator:save_model(model, folder, { max_shard_size = "0.1KB" })
      assert.are.same({ "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
        "model-00003-of-00004.safetensors",
        "model-00004-of-00004.safetensors", "model.safetensors.index.json" }, fs.list(folder))
      local index = json.decode(fs.read(folder .. "/model.safetensors.index.json"))
      assert.are.equal((32 + 8 + 24 + 3) * 4, index.metadata.total_size)
      assert.are.equal("model-00001-of-00004.safetensors", index.weight_map["0.weight"])
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
      accelerator:save_model(model, folder, { max_shard_size = 150 })
      assert.are.equal(3, #fs.list(folder))  -- two shards and the index; the old ones are gone
      other = net()
      accelerate.load_checkpoint_in_model(other, folder .. "/model.safetensors.index.json", { strict = true })
      assert.is_true(same(model, other))
      accelerator:save_model(model, folder)
      assert.are.same({ "model.safetensors" }, fs.list(folder))
    end)
  end)

  it("come back from PyTorch's format, whole and in shards", function()
    host.in_folder(function(folder)
      local function tied()
        local model = net()
        model.head = nn.Linear(4, 8)
        model.head.weight = model[1].weight
        return model
      end
      local model, other = tied(), tied()
      accelerator:save_model(model, folder)
      accelerator:save_model(model, folder, { safe_serialization = false })
      assert.are.same({ "model.safetensors", "pytorch_model.bin" }, fs.list(folder))
      os.remove(folder .. "/model.safetensors")
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
      accelerator:save_model(model, folder, { safe_serialization = false, max_shard_size = 150 })
      assert.are.same({ "pytorch_model-00001-of-00003.bin", "pytorch_model-00002-of-00003.bin",
        "pytorch_model-00003-of-00003.bin", "pytorch_model.bin.index.json" }, fs.list(folder))
      local index = json.decode(fs.read(folder .. "/pytorch_model.bin.index.json"))
      assert.are.equal((32 + 8 + 24 + 3 + 8) * 4, index.metadata.total_size)
      assert.are.equal(index.weight_map["0.weight"], index.weight_map["head.weight"])
      local part = accelerate.utils.load(folder .. "/" .. index.weight_map["0.weight"])
      assert.are.equal(part["0.weight"]:_address(), part["head.weight"]:_address())
      other = tied()
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
    end)
  end)

  it("hold tied weights once", function()
    host.in_folder(function(folder)
      local function tied()
        local model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[2].weight = model[1].weight
        return model
      end
      local model, other = accelerator:prepare(tied()), tied()
      accelerator:save_model(model, folder)
      local list = core.safetensors_load(folder .. "/model.safetensors")
      assert.are.equal(3, #list)
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
    end)
  end)

  it("say what is wrong with a checkpoint", function()
    host.in_folder(function(folder)
      local model = net()
      local load = accelerate.load_checkpoint_in_model
      assert.error_matches(function() load(model, folder .. "/none") end, "there is no file or directory")
      assert.error_matches(function() load(model, folder) end, "holds neither model.safetensors nor an index")
      accelerator:save_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 3)),
        folder)
      assert.error_matches(function() load(model, folder, { strict = true }) end,
        "unexpected keys: 3.weight, 3.bias")
      load(model, folder)
      assert.error_matches(function() load(nn.Sequential(nn.Linear(5, 8)), folder) end,
        "size mismatch for '0.weight'")
      assert.error_matches(function() load(model, folder, { dtype = "float16" }) end,
        "dtype goes with a device_map")
      assert.error_matches(function() accelerator:save_model(model, folder, { max_shard_size = "5XB" }) end,
        "expected a number of bytes or text")
      accelerator:save({ 1 }, folder .. "/list.bin", { safe_serialization = false })
      assert.error_matches(function() load(model, folder .. "/list.bin", { strict = true }) end,
        "unexpected keys: 1")
      accelerator:save("text", folder .. "/text.bin", { safe_serialization = false })
      assert.error_matches(function() load(model, folder .. "/text.bin") end, "expected tensors by name")
      fs.write(folder .. "/model.safetensors.index.json", "{ nonsense")
      os.remove(folder .. "/model.safetensors")
      assert.error_matches(function() load(model, folder) end, "json: ")
      fs.write(folder .. "/other.index.json", "{}")
      assert.error_matches(function() load(model, folder) end, "several index files")
    end)
  end)

  it("are saved by Accelerator:save as any other object, in PyTorch's format", function()
    host.in_folder(function(folder)
      local utils = require "accelerate.utils"
      local object = { epoch = 3, name = "run", weights = { w = core.ones(2) }, flags = { true, false } }
      for _, name in ipairs { "a.pt", "a.safetensors", "a" } do
        accelerator:save(object, folder .. "/" .. name)
        assert.equal("PK", fs.head(folder .. "/" .. name, 2))
        local found = utils.load(folder .. "/" .. name)
        assert.same({ 3, "run", { 1, 1 }, { true, false } },
          { found.epoch, found.name, found.weights.w:totable(), found.flags })
      end
      for _, last in ipairs { true, { safe_serialization = true } } do
        accelerator:save({ w = core.ones(2) }, folder .. "/b", last)
        assert.same({ 1, 1 }, utils.load_safetensors(folder .. "/b").w:totable())
      end
      assert.error_matches(function() accelerator:save(object, folder .. "/c", true) end,
        "save: 'epoch' must be a tensor, got 3")
      assert.error_matches(function() accelerator:save({ print }, folder .. "/c") end, "function")
      assert.is_false(fs.exists(folder .. "/c"))
    end)
  end)

  it("are written by the main process", function()
    host.in_folder(function(folder)
      ranks.ok(2, [[
        local accelerator = accelerate.Accelerator()
        local model = accelerator:prepare(require("accelerate.nn").Linear(3, 3))
        accelerator:save_model(model, arg[1] .. "/" .. rank)
        accelerator:save({ x = core.ones(2) }, arg[1] .. "/file" .. rank)
        accelerator:wait_for_everyone()
        local other = require("accelerate.nn").Linear(3, 3)
        accelerate.load_checkpoint_in_model(other, arg[1] .. "/0", { strict = true })
        check((other.weight - model.weight):abs():max():item() == 0)
      ]], { arguments = { folder } })
      assert.are.same({ "0", "file0" }, fs.list(folder))
    end)
  end)
end)
