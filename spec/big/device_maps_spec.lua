-- Sizes, limits and device maps beside Accelerate's, for random models and limits
-- (generators/gen_device_maps_reference.py wrote them down).
local accelerate = require "accelerate"
local ordered = require "accelerate.utils.ordered"
local tree_models = require "spec.support.tree_models"
local utils = require "accelerate.utils"

local PATH = "spec/reference/device_maps_reference.json"

local function model_of(entry) return tree_models.tie(tree_models.build(entry.model), entry.ties) end

-- Keys of JSON are texts; the numbers among them are GPUs.
local function keyed(map)
  local result = {}
  for key, value in ordered.pairs(map) do result[tonumber(key) or key] = value end
  return result
end

local function plain(map)
  local result = {}
  for key, value in ordered.pairs(map) do result[key] = value end
  return result
end

local function options_of(given)
  local o = plain(given)
  o.max_memory = keyed(given.max_memory)
  return o
end

local notice = require "accelerate.messages.notice"

describe("device maps beside Accelerate's", function()
  local entries, say
  setup(function()
    entries = tree_models.read(PATH)
    say, notice.here = notice.here, function() end -- GPUs of the limits are not there
  end)
  teardown(function() notice.here = say end)

  it("counts the bytes of modules, of halves, of buffers and of the largest layers alike", function()
    for i, entry in ipairs(entries) do
      local model = model_of(entry)
      assert.same(plain(entry.sizes), plain(utils.compute_module_sizes(model)), "model " .. i)
      assert.equal(entry.halves, utils.compute_module_sizes(model, { dtype = "float16" })[""])
      assert.equal(entry.buffers, utils.compute_module_total_buffer_size(model))
      local total, largest = utils.calculate_maximum_sizes(model)
      assert.equal(entry.sizes[""], total)
      assert.same(entry.largest, largest, "model " .. i)
    end
  end)

  it("finds the same tied parameters", function()
    for i, entry in ipairs(entries) do
      local tied = utils.find_tied_parameters(model_of(entry))
      table.sort(tied, function(a, b) return a[1] < b[1] end)
      assert.same(entry.tied, tied, "model " .. i)
    end
  end)

  it("infers the same map for the same limits", function()
    local count = 0
    for i, entry in ipairs(entries) do
      local model = model_of(entry)
      for k, case in ipairs(entry.cases) do
        local found = utils.infer_auto_device_map(model, options_of(case.options))
        assert.same(plain(case.map), plain(found), ("model %d, case %d"):format(i, k))
        count = count + 1
      end
    end
    assert.is_true(count > 250)
  end)

  it("balances the limits alike", function()
    for i, entry in ipairs(entries) do
      local model = model_of(entry)
      for k, case in ipairs(entry.cases) do
        local given = options_of(case.options)
        given.max_memory.disk = nil
        local found = utils.get_balanced_memory(model, { max_memory = given.max_memory, dtype = given.dtype,
          no_split_module_classes = given.no_split_module_classes, low_zero = case.low_zero })
        assert.same(keyed(case.balanced), plain(found), ("model %d, case %d"):format(i, k))
      end
    end
  end)
end)

describe("no_split_module_classes", function()
  it("takes Transformers' names of a model's blocks", function()
    local size = { vocab_size = 100, num_hidden_layers = 3, num_attention_heads = 4, hidden_size = 32,
      intermediate_size = 64, num_key_value_heads = 4 }
    for their_name, class in pairs { LlamaDecoderLayer = "LlamaForCausalLM", BertLayer = "BertForMaskedLM",
      Qwen2DecoderLayer = "Qwen2ForCausalLM", RobertaLayer = "RobertaForMaskedLM" } do
      local model = accelerate.init_empty_weights(accelerate.models[class], size)
      local block = model:get_submodule(class:find "Bert" and "bert.encoder.layer.0"
        or class:find "Roberta" and "roberta.encoder.layer.0" or "model.layers.0")
      local bytes = utils.compute_module_sizes(model)
      for part = 1, 9 do
        local limits = { [0] = math.floor(bytes[""] * part / 10), cpu = bytes[""] }
        local function map(name)
          return utils.infer_auto_device_map(model,
            { max_memory = limits, no_split_module_classes = { name } })
        end
        assert.same(map(block.__name), map(their_name), class)
        for path in pairs(map(their_name)) do
          assert.is_nil(path:match "layers?%.%d+%.", ("%s: %s"):format(class, path))
        end
        assert.same(utils.get_balanced_memory(model, { max_memory = { [0] = limits[0], [1] = limits.cpu },
            no_split_module_classes = { block.__name } }),
          utils.get_balanced_memory(model, { max_memory = { [0] = limits[0], [1] = limits.cpu },
            no_split_module_classes = their_name }))
      end
    end
  end)
end)
