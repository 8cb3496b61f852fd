--- Parameters of several names.
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local sizes = require "accelerate.big_modeling.sizes"
local tensors = require "accelerate.hooks.tensors"

local M = {}

--- Returns the groups of names that stand for one parameter each, sorted by name.
---@param model accelerate.nn.Module
---@return string[][]
function M.find_tied_parameters(model)
  sizes.check_model("find_tied_parameters", model)
  local names, groups = {}, {}
  for name, p in model:named_parameters { remove_duplicate = false } do
    if not names[p] then
      names[p] = {}
      groups[#groups + 1] = names[p]
    end
    table.insert(names[p], name)
  end
  local tied = {}
  for _, group in ipairs(groups) do
    table.sort(group)
    if #group > 1 then tied[#tied + 1] = group end
  end
  return tied
end

local function value_of(model, name)
  local module, last = tensors.owner(model, name)
  return module[last]
end

--- Makes the parameters of each group one again: the first that has memory takes the place of the
--- others. A group without one stays.
---@param model accelerate.nn.Module
---@param tied_params string[][] as find_tied_parameters returns them
function M.retie_parameters(model, tied_params)
  sizes.check_model("retie_parameters", model)
  options.value("retie_parameters", "tied_params", tied_params, { "list" })
  for _, group in ipairs(tied_params) do
    local kept
    for _, name in ipairs(group) do
      local p = value_of(model, name)
      if p.device ~= "meta" then
        kept = p
        break
      end
    end
    for _, name in ipairs(kept and group or {}) do
      local module, last = tensors.owner(model, name)
      if not rawequal(module[last], kept) then module[last] = kept end
    end
  end
end

--- Returns the place that a device map gives a tensor: its own entry's, or that of the nearest
--- module above. nil: it has none.
---@param device_map table<string, string|integer>
---@param name string
---@return string|integer|nil
function M.place_of(device_map, name)
  while device_map[name] == nil do
    local above = name:match "^(.*)%.[^.]*$"
    if not above then return device_map[""] end
    name = above
  end
  return device_map[name]
end

--- Writes a notice for each group of tied parameters that a device map puts on different devices.
--- Raises when it gives one none.
---@param tied_params string[][]
---@param device_map table<string, string|integer>
function M.check_tied_parameters_on_same_device(tied_params, device_map)
  options.value("check_tied_parameters_on_same_device", "tied_params", tied_params, { "list" })
  options.value("check_tied_parameters_on_same_device", "device_map", device_map, { "table" })
  for g, group in ipairs(tied_params) do
    options.value("check_tied_parameters_on_same_device", ("tied_params[%d]"):format(g), group, { "list" })
    local parts, first, differ = {}, nil, false
    for i, name in ipairs(group) do
      local place = M.place_of(device_map, name)
      if place == nil then
        options.fail("check_tied_parameters_on_same_device: device_map has no place for %s", name)
      end
      if i == 1 then first = place end
      differ = differ or place ~= first
      parts[i] = ("%s on %s"):format(name, tostring(place))
    end
    if differ then
      notice.main("tied parameters are on different devices: %s; give the modules one device, or use " ..
        "device_map = \"auto\"", table.concat(parts, ", "))
    end
  end
end

--- Returns whether a model of accelerate.models is configured to have tied weights.
---@param model accelerate.nn.Module
---@return boolean
function M.check_tied_parameters_in_config(model)
  sizes.check_model("check_tied_parameters_in_config", model)
  local config = rawget(model._values or {}, "config")
  if type(config) ~= "table" or not model.traits then return false end
  return config.tie_word_embeddings == true and M.find_tied_parameters(model)[1] ~= nil
    or config.is_encoder_decoder == true and config.tie_encoder_decoder == true
end

return M
