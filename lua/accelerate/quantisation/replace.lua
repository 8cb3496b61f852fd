--- Which layers of a model get encoded weights, and their replacement.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local layers = require "accelerate.quantisation.layers"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local scope = require "accelerate.utils.scope"
local ties = require "accelerate.big_modeling.ties"

local M = {}

local function without_part(name) return (name:gsub("%.weight", ""):gsub("%.bias", "")) end

--- Returns the names of the layers that keep their weights where nobody says which: those with tied
--- weights and the last child of the model; none of a model without a head.
---@param model accelerate.nn.Module
---@return string[]
function M.keys_to_not_convert(model)
  local tied, set, list = {}, {}, {}
  for _, group in ipairs(ties.find_tied_parameters(model)) do
    for _, name in ipairs(group) do tied[#tied + 1] = name end
  end
  local prefix = model.traits and model.traits.prefix
  if #tied == 0 and prefix and not model._registered.kinds[prefix] then return {} end
  local children = model:_own("module")
  local last = children[#children]
  if last then tied[#tied + 1] = last[1] end
  for _, name in ipairs(tied) do
    name = without_part(name)
    if not set[name] then set[name], list[#list + 1] = true, name end
  end
  return list
end

--- Returns whether a layer keeps its weights: it is listed by its own name or its path, or is in a
--- module that is listed.
---@param path string
---@param names string[]
---@return boolean
function M.is_kept(path, names)
  local own = path:match "[^.]*$"
  for _, name in ipairs(names) do
    if name == own or name == path or path:find(name .. ".", 1, true) then return true end
  end
  return false
end

local function layer_for(config, old, empty)
  if config.load_in_8bit then
    return layers.Linear8bitLt(old, { threshold = config.llm_int8_threshold, empty = empty })
  end
  return layers.Linear4bit(old, { quant_type = config.bnb_4bit_quant_type,
    compress_statistics = config.bnb_4bit_use_double_quant, compute_dtype = config.bnb_4bit_compute_dtype,
    empty = empty })
end

--- Replaces linear layers below a model by `make(layer, path)`, where that returns one.
---@param model accelerate.nn.Module
---@param make fun(layer: accelerate.nn.Linear, path: string): accelerate.nn.Module?
---@return string[] paths of the replaced layers
function M.each_linear(model, make)
  local found, paths = {}, {}
  for path, module in model:named_modules() do
    for _, child in ipairs(module:_own("module")) do
      local layer = child[2]
      if class.is(layer, nn.Linear) and not class.is(layer, layers.EncodedLinear) then
        found[#found + 1] = { module, child[1], layer, path == "" and child[1] or path .. "." .. child[1] }
      end
    end
  end
  for _, item in ipairs(found) do
    local new = make(item[3], item[4])
    if new then
      new.training = item[3].training
      item[1][item[2]] = new
      paths[#paths + 1] = item[4]
    end
  end
  return paths
end

--- Fills in the lists of names of a configuration where they are nil.
---@param model accelerate.nn.Module
---@param config accelerate.BnbQuantizationConfig
function M.fill_in(model, config)
  config.skip_modules = config.skip_modules or M.keys_to_not_convert(model)
  config.keep_in_fp32_modules = config.keep_in_fp32_modules or {}
end

-- Whether the layer of a path is replaced.
local function chooser(config)
  local kept = {}
  for _, list in ipairs { config.skip_modules, config.keep_in_fp32_modules } do
    for _, name in ipairs(list) do kept[#kept + 1] = name end
  end
  return function(path) return not M.is_kept(path, kept) end
end

--- Runs fn() while the layers that with_bnb_layers is going to replace have tensors of their own,
--- on the device "meta": a replaced layer shares none. Returns its result.
---@param model accelerate.nn.Module
---@param config accelerate.BnbQuantizationConfig with its lists of names
---@param fn fun(): any
---@return any
function M.apart(model, config, fn)
  local is_replaced, former = chooser(config), {}
  M.each_linear(model, function(layer, path)
    for name, p in layer:named_parameters { recurse = false } do
      if is_replaced(path) then
        former[#former + 1] = { layer, name, p }
        layer[name] = nn.Parameter(core.empty(p.shape, { dtype = p.dtype, device = "meta" }),
          { requires_grad = false })
      end
    end
  end)
  return scope.run(nil, function()
    for _, of in ipairs(former) do of[1][of[2]] = of[3] end
  end, fn)
end

--- Replaces the linear layers of a model, but for those that are kept, by layers in 4 or 8 bits.
---@param model accelerate.nn.Module
---@param config accelerate.BnbQuantizationConfig its lists of names are filled in where they are
---  nil
---@param empty boolean? the layers get their weights from a state dict
---@return string[] paths of the replaced layers
function M.with_bnb_layers(model, config, empty)
  M.fill_in(model, config)
  local is_replaced = chooser(config)
  local paths = M.each_linear(model, function(old, path)
    if not is_replaced(path) then return end
    local new = layer_for(config, old, empty)
    new:requires_grad_(false)
    return new
  end)
  if #paths == 0 then notice.main("load_and_quantize_model: the model has no linear layer to encode") end
  return paths
end

return M
