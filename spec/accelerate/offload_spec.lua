-- Weights on disk in Accelerate's form. INDEX and BYTES are what Accelerate writes for this state
-- dict; its index has the dict's order, ours is sorted.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"
local tensor = require "accelerate.tensor"
local tree_models = require "spec.support.tree_models"
local utils = require "accelerate.utils"
local raises = require("spec.support.messages").raises

local function dict_of(list)
  local dict = ordered.new()
  for _, item in ipairs(list) do dict[item[1]] = tensor.tensor(item[3], { dtype = item[2] }) end
  return dict
end

local LIST = { { "a.weight", "float32", { { 0, 1, 2 }, { 3, 4, 5 } } }, { "a.bias", "bfloat16", { 1.5, -2 } },
  { "s", "int64", 7 }, { "m", "bool", { true, false } }, { "h", "float16", { { 1, 2 } } },
  { "d", "float64", { 0.1 } }, { "u", "uint8", { 3 } }, { "i", "int32", { -1 } } }
local BYTES = { ["a.weight"] = "000000000000803f0000004000004040000080400000a040", ["a.bias"] = "c03f00c0",
  s = "0700000000000000", m = "0100", h = "003c0040", d = "9a9999999999b93f", u = "03", i = "ffffffff" }
local INDEX = [[
{
  "a.bias": {
    "dtype": "bfloat16",
    "shape": [
      2
    ]
  },
  "a.weight": {
    "dtype": "float32",
    "shape": [
      2,
      3
    ]
  },
  "s": {
    "dtype": "int64",
    "shape": []
  }
}]]

local function hex(text)
  return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

describe("a state dict on disk", function()
  it("has Accelerate's files, and comes back", function()
    host.in_folder(function(base)
      local folder, dict = base .. "/new/weights", dict_of(LIST)
      utils.offload_state_dict(folder, dict)
      for name, bytes in pairs(BYTES) do
        assert.equal(bytes, hex(assert(fs.read(("%s/%s.dat"):format(folder, name)))), name)
      end
      local loader = utils.OffloadedWeightsLoader { save_folder = folder }
      assert.equal(#LIST, #loader)
      local seen = {}
      for name, weight in pairs(loader) do
        seen[name] = true
        assert.is_true(core.same_bits(dict[name], weight), name)
        assert.same(dict[name].shape, weight.shape)
      end
      for _, item in ipairs(LIST) do assert.is_true(seen[item[1]]) end
    end)
  end)

  it("is read from a folder of Accelerate's, and written as it was", function()
    local reference = tree_models.read "spec/reference/offload_reference.json"
    local function bytes_of(digits)
      return (digits:gsub("%x%x", function(x) return string.char(tonumber(x, 16)) end))
    end
    host.in_folder(function(folder)
      for _, of in ipairs(reference.files) do fs.write(folder .. "/" .. of[1] .. ".dat", bytes_of(of[5])) end
      fs.write(folder .. "/index.json", json.encode(reference.index))
      local loader, index, n = utils.OffloadedWeightsLoader { save_folder = folder }, {}, 0
      local again = folder .. "/again"
      fs.make_dirs(again)
      for _, of in ipairs(reference.files) do
        local name, dtype, shape, bits, content = unpack(of)
        if dtype == "int16" then raises("no element type \"int16\"", function() return loader[name] end)
        else
          local w = loader[name]
          assert.equal(dtype == "int8" and "uint8" or dtype, w.dtype, name)
          assert.same({ unpack(shape) }, w.shape, name)
          if not dtype:find "complex" and w:numel() > 0 then
            assert.equal(bits, hex(string.char(unpack(w:reshape(-1):view("uint8"):totable()))), name)
          end
          utils.offload_weight(w, name, again, index)
          assert.equal(content, hex(assert(fs.read(again .. "/" .. name .. ".dat"))), name)
          assert.same({ dtype = reference.index[name].dtype, shape = { unpack(shape) } },
            { dtype = index[name].dtype, shape = { unpack(index[name].shape) } }, name)
          n = n + 1
        end
      end
      assert.equal(80, n)
    end)
  end)

  it("has Accelerate's index, to which later entries are added", function()
    host.in_folder(function(folder)
      utils.offload_state_dict(folder, dict_of { LIST[1], LIST[2] })
      utils.offload_state_dict(folder, dict_of { LIST[3] })
      assert.equal(INDEX, assert(fs.read(folder .. "/index.json")))
      utils.save_offload_index({}, folder .. "/nowhere")
      assert.is_false(fs.exists(folder .. "/nowhere"))
    end)
  end)

  it("may be a view, empty, or on its way to a gradient", function()
    host.in_folder(function(folder)
      local x = tensor.arange(6):view(2, 3):float():requires_grad_()
      local index = utils.offload_weight(x:t(), "t", folder, {})
      local back = utils.load_offloaded_weight(folder .. "/t.dat", index.t)
      assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, back:totable())
      utils.offload_weight(tensor.zeros(0, 3), "none", folder, index)
      assert.same({ 0, 3 }, utils.load_offloaded_weight(folder .. "/none.dat", index.none).shape)
    end)
  end)

  it("says what is wrong with it", function()
    host.in_folder(function(folder)
      utils.offload_state_dict(folder, dict_of(LIST))
      local loader = utils.OffloadedWeightsLoader { save_folder = folder }
      raises("no weight 'a.wieght'; did you mean 'a.weight'", function() return loader["a.wieght"] end)
      assert(fs.write(folder .. "/d.dat", "1234567"))
      raises("d.dat': it has 7 bytes; 1 elements of float64 have 8", function() return loader.d end)
      os.remove(folder .. "/h.dat")
      raises("h.dat': cannot be opened: No such file", function() return loader.h end)
      raises("no element type \"float\"; did you mean", utils.load_offloaded_weight, folder .. "/u.dat",
        { dtype = "float", shape = { 1 } })
      raises("must have dtype and shape", utils.load_offloaded_weight, folder .. "/u.dat",
        { dtype = "uint8" })
      for _, size in ipairs { -1, 2 ^ 60, "x" } do
        raises("load_offloaded_weight", utils.load_offloaded_weight, folder .. "/u.dat",
          { dtype = "uint8", shape = { size, 2 ^ 10 } })
      end
      raises("offload_state_dict: x must be a tensor", utils.offload_state_dict, folder, { x = 1 })
      raises("give state_dict, save_folder or index", utils.OffloadedWeightsLoader, {})
      raises("index.json", utils.OffloadedWeightsLoader, { save_folder = folder .. "/nowhere" })
      raises("read only", function() loader.x = 1 end)
    end)
  end)
end)

describe("a map of weights", function()
  it("has the state dict first, and reads safetensors files that its index names", function()
    host.in_folder(function(folder)
      local path = folder .. "/model.safetensors"
      core.safetensors_save(path, { { "fc.weight", tensor.ones(2, 2) }, { "other", tensor.zeros(3) } })
      local loader = utils.OffloadedWeightsLoader { state_dict = { x = tensor.ones(1) }, index = {
        x = { dtype = "float32", shape = { 9 } }, ["fc.weight"] = { safetensors_file = path },
        half = { safetensors_file = path, weight_name = "other", dtype = "float16" },
        lost = { dtype = "float32", shape = { 1 } } } }
      assert.equal(4, #loader)
      assert.same({ 1 }, loader.x:totable())
      assert.same({ { 1, 1 }, { 1, 1 } }, loader["fc.weight"]:totable())
      assert.equal("float16", loader.half.dtype)
      raises("save_folder, which was not given", function() return loader.lost end)
      local view = utils.PrefixedDataset(loader, "fc.")
      assert.same({ { 1, 1 }, { 1, 1 } }, view.weight:totable())
      assert.equal(1, #view)
      for name in pairs(view) do assert.equal("fc.weight", name) end
    end)
  end)

  it("gives the entries of submodules", function()
    local dict = { ["h.1.w"] = 1, ["h.10.w"] = 2, ["h.1"] = 3, ln = 4 }
    local found = {}
    for name, value in ordered.pairs(utils.extract_submodules_state_dict(dict, { "h.1", "ln" })) do
      found[name] = value
    end
    assert.same({ ["h.1.w"] = 1, ["h.1"] = 3, ln = 4 }, found)
  end)
end)

describe("an offloaded weight of another type than its file's", function()
  local function away()
    local path = os.tmpname()
    core.safetensors_save(path, { { "a", core.arange(12):float():view(3, 4) } })
    local file = core.safetensors_open(path)
    local t = file:_offload("a", core._offload_new("cpu", nil, 0), "bfloat16")
    os.remove(path)
    return t
  end

  it("is an operand of ops that go through elements one by one", function()
    local y = core.ones({ 3, 4 }, { dtype = "bfloat16" })
    assert.are.equal(78, (y + away()):float():sum():item())
    assert.are.equal(4 + 5 + 6 + 7 + 4, (y:narrow(1, 1, 1) + away():narrow(1, 2, 1)):float():sum():item())
    assert.are.equal(66, away():sum():item())
  end)

  it("is written in place", function()
    assert.are.equal(12, away():fill_(1):float():sum():item())
    assert.are.equal(24, away():copy_(core.full({ 3, 4 }, 2)):float():sum():item())
    local t = away()
    assert.are.equal(78, t:add_(1):float():sum():item())
  end)
end)

describe("a tensor without elements", function()
  it("has a file of one byte, as Accelerate's, and is read from it and from an empty one", function()
    host.in_folder(function(root)
      utils.offload_state_dict(root, { none = core.zeros(0, 3) })
      assert.equal("\0", (fs.read(root .. "/none.dat")))
      local loader = utils.OffloadedWeightsLoader { save_folder = root }
      assert.same({ 0, 3 }, loader.none.shape)
      assert(fs.write(root .. "/none.dat", ""))
      assert.same({ 0, 3 }, loader.none.shape)
      assert(fs.write(root .. "/none.dat", "four"))
      assert.error_matches(function() return loader.none end,
        "it has more than a byte; no elements have none")
    end)
  end)

  it("rests on disk with the rest of a model", function()
    host.in_folder(function(root)
      local model = nn.Module()
      model.none, model.some = nn.Parameter(core.zeros(0, 3)), nn.Parameter(core.ones(2))
      require("accelerate").disk_offload(model, root, { execution_device = "cpu" })
      assert.same({ 0, 3 }, model.none.shape)
      assert.same({ 1, 1 }, model.some:tolist())
    end)
  end)
end)
