-- Device maps of quantised models beside those of Accelerate's load_and_quantize_model, and the
-- layers that it replaces (generators/gen_quantised_maps_reference.py wrote them down).
local accelerate = require "accelerate"
local class = require "accelerate.utils.class"
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local ordered = require "accelerate.utils.ordered"
local quantisation = require "accelerate.quantisation"
local replace = require "accelerate.quantisation.replace"
local tensor = require "accelerate.tensor"
local tree_models = require "spec.support.tree_models"
local utils = require "accelerate.utils"

local function build(tree)
  local kind = tree[1]
  if kind == "linear" then return nn.Linear(tree[2], tree[3], { bias = tree[4] }) end
  if kind == "norm" then return nn.LayerNorm(tree[2]) end
  if kind == "embedding" then return nn.Embedding(tree[2], tree[3]) end
  local module = nn.class(kind)()
  if tree[3] > 0 then module:register_buffer("mask", tensor.zeros(tree[3])) end
  for _, child in ipairs(tree[2]) do module:add_module(child[1], build(child[2])) end
  return module
end

local function plain(map, number)
  local result = {}
  for key, value in ordered.pairs(map) do result[number and tonumber(key) or key] = value end
  return result
end

-- The map and the paths of the replaced layers.
local function quantised(entry, case)
  local model = tree_models.tie(accelerate.init_empty_weights(function() return build(entry.model) end),
    entry.ties)
  local config = accelerate.utils.BnbQuantizationConfig(plain(case.config))
  local o = plain(case.options)
  o.max_memory = plain(case.options.max_memory, true)
  replace.fill_in(model, config)
  local map, layers = quantisation.map_of(model, config, o), {}
  replace.with_bnb_layers(model, config, true)
  for path, module in model:named_modules() do
    if class.is(module, quantisation.EncodedLinear) then layers[#layers + 1] = path end
  end
  return plain(map), layers
end

describe("quantised models", function()
  local entries, say
  setup(function()
    entries = tree_models.read "spec/reference/quantised_maps_reference.json"
    say, notice.here = notice.here, function() end -- GPUs of the limits are not there
  end)
  teardown(function() notice.here = say end)

  it("are put on the same devices, with the same layers replaced", function()
    local n = 0
    for i, entry in ipairs(entries) do
      for k, case in ipairs(entry.cases) do
        local map, layers = quantised(entry, case)
        local what = ("model %d, case %d: %s %s"):format(i, k, json.encode(case.config),
          json.encode(case.options))
        assert.same(plain(case.map), map, what)
        assert.same(case.layers, layers, what)
        n = n + 1
      end
    end
    assert.is_true(n > 250)
  end)

  it("have the same sizes and maps with types of fewer bits", function()
    local n = 0
    for i, entry in ipairs(entries) do
      for k, case in ipairs(entry.types) do
        local model = tree_models.tie(build(entry.model), entry.ties)
        local special = plain(case.special_dtypes)
        local what = ("model %d, case %d: %s"):format(i, k, case.dtype)
        assert.same(plain(case.sizes), plain(utils.compute_module_sizes(model, { dtype = case.dtype,
          special_dtypes = special })), what)
        assert.same(plain(case.map), plain(utils.infer_auto_device_map(model, { dtype = case.dtype,
          special_dtypes = special, max_memory = plain(case.max_memory, true),
          no_split_module_classes = plain(case.no_split_module_classes) })), what)
        n = n + 1
      end
    end
    assert.is_true(n > 80)
  end)
end)
