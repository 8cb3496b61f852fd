local core = require "accelerate.core"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"
local utils = require "accelerate.utils"
local said = require("spec.support.messages").said

local function plain(map)
  local result = {}
  for key, value in ordered.pairs(map) do result[key] = value end
  return result
end

local function tied_model()
  local model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
  model[2].weight = model[1].weight
  return model
end

describe("sizes", function()
  it("of types are Accelerate's, with half and eighth bytes", function()
    local expected = { float32 = 4, bfloat16 = 2, ["torch.float16"] = 2, int64 = 8, uint8 = 1, bool = 1 / 8,
      int4 = 1 / 2, int2 = 1 / 4, fp8 = 1, float8_e4m3fn = 1, complex64 = 8 }
    for name, bytes in pairs(expected) do assert.equal(bytes, utils.dtype_byte_size(name)) end
    assert.error_matches(function() utils.dtype_byte_size "float" end,
      "dtype_byte_size: dtype: expected a type")
  end)

  it("of tensors that are given types of their own go by those", function()
    local found = utils.compute_module_sizes(nn.Linear(4, 2), { dtype = "float16",
      special_dtypes = { weight = "int4" } })
    assert.same({ [""] = 8, weight = 4, bias = 4 }, plain(found))
  end)

  it("of texts are decimal or binary, and of a small b bits", function()
    assert.same({ [0] = 5e9, cpu = 2 ^ 30, disk = 1e6 },
      plain(utils.get_max_memory { [0] = "5GB", cpu = "1GiB", disk = "8Mb" }))
  end)
end)

describe("get_max_memory", function()
  it("orders GPUs by number, then the CPU, then the disk", function()
    local found
    said(function() found = utils.get_max_memory { cpu = 1, disk = 2, [1] = 3, [0] = 4 } end)
    assert.same({ 0, 1, "cpu", "disk" }, ordered.keys(found))
  end)

  it("gives what is free without an argument", function()
    local found = utils.get_max_memory()
    local stats = core.memory_stats()
    assert.is_true(found.cpu > 0 and found.cpu <= stats.limit_bytes)
    assert.is_nil(found.disk)
  end)

  it("refuses a device that it does not know", function()
    assert.error_matches(function() utils.get_max_memory { tpu = 5 } end,
      "get_max_memory: max_memory has the device 'tpu'; known are")
    assert.error_matches(function() utils.get_max_memory { cpu = "5 apples" } end,
      "get_max_memory: max_memory%[cpu%]: expected a number of bytes")
  end)
end)

describe("a device map", function()
  it("is cleaned from the top on", function()
    assert.same({ [""] = "cpu" }, utils.clean_device_map { a = "cpu", ["b.0"] = "cpu", ["b.1"] = "cpu" })
    assert.same({ a = 0, b = "cpu" }, utils.clean_device_map { a = 0, ["b.0"] = "cpu", ["b.1"] = "cpu" })
  end)

  it("that leaves parameters out is refused by their names", function()
    assert.error_matches(function() utils.check_device_map(tied_model(), { ["0"] = "cpu" }) end,
      "check_device_map: device_map gives these no device: 1.weight, 1.bias, 2.weight, 2.bias")
  end)

  it("that names what the model has not gets a notice", function()
    local text = said(function() utils.check_device_map(tied_model(), { [""] = "cpu", zero = 0 }) end)
    assert.matches("device_map: the model has no modules zero", text)
  end)

  it("is made again with the decisions printed on request", function()
    local lines = {}
    local show = print
    _G.print = function(line) lines[#lines + 1] = line end
    utils.infer_auto_device_map(tied_model(), { max_memory = { cpu = 60 }, verbose = true })
    _G.print = show
    assert.matches("does not fit on cpu", table.concat(lines, "\n"))
  end)
end)

describe("tied parameters", function()
  it("on different devices get a notice", function()
    local model = tied_model()
    local text = said(function()
      utils.check_tied_parameters_on_same_device(utils.find_tied_parameters(model),
        { ["0"] = "cpu", ["1"] = "disk" })
    end)
    assert.matches("0.weight on cpu, 1.weight on disk", text)
  end)

  it("become one again, the one that has memory", function()
    local model = tied_model()
    local kept, ties = model[1].weight, utils.find_tied_parameters(model)
    model[2].weight = nn.Parameter(core.empty({ 3, 3 }, { device = "meta" }))
    utils.retie_parameters(model, ties)
    assert.is_true(rawequal(kept, model[1].weight) and rawequal(kept, model[2].weight))
  end)
end)
