--- Device maps: which module goes where. Keys are names of modules ("" is the whole model) or of
--- parameters; values are numbers of GPUs, "cuda:N", "cpu" or "disk".
local core = require "accelerate.core"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local sizes = require "accelerate.big_modeling.sizes"
local ties = require "accelerate.big_modeling.ties"

local fail = options.fail

local M = {}

-- The names of a map that stand below a module.
local function below(map, prefix)
  local list = {}
  for _, key in ipairs(ordered.keys(map)) do
    if key:sub(1, #prefix) == prefix then list[#list + 1] = key end
  end
  return list
end

-- Whether several names all have one place.
local function alike(map, keys)
  for _, key in ipairs(keys) do
    if map[key] ~= map[keys[1]] then return false end
  end
  return #keys > 1
end

-- The names of modules one level below, of the names of a map.
local function children_of(keys, name)
  local _, dots = name:gsub("%.", "")
  local depth, list, seen = name == "" and 1 or dots + 2, {}, {}
  for _, key in ipairs(keys) do
    local parts = {}
    for part in key:gmatch "[^.]+" do
      if #parts < depth then parts[#parts + 1] = part end
    end
    local child = table.concat(parts, ".")
    if #key > #name and not seen[child] then
      seen[child], list[#list + 1] = true, child
    end
  end
  return list
end

local function clean(map, name)
  local prefix = name == "" and "" or name .. "."
  local keys = below(map, prefix)
  if alike(map, keys) then
    local place = map[keys[1]]
    for _, key in ipairs(keys) do map[key] = nil end
    map[name] = place
  end
  for _, child in ipairs(children_of(below(map, prefix), name)) do clean(map, child) end
  return map
end

--- Makes one entry of all entries below a module that have one place, from the top on.
---@param device_map table<string, string|integer> is changed
---@param module_name? string where to begin; default "", the whole model
---@return table<string, string|integer> device_map
function M.clean_device_map(device_map, module_name)
  options.value("clean_device_map", "device_map", device_map, { "table" })
  for name in next, device_map do
    options.value("clean_device_map", "a name in device_map", name, { "string" })
  end
  return clean(device_map, options.value("clean_device_map", "module_name", module_name or "", { "string" }))
end

--- Raises when a device map gives a parameter or a saved buffer no place. Names that the model does
--- not have as modules get a notice.
---@param model accelerate.nn.Module
---@param device_map table<string, string|integer>
function M.check_device_map(model, device_map)
  sizes.check_model("check_device_map", model)
  options.value("check_device_map", "device_map", device_map, { "table" })
  local known, unknown, left = {}, {}, {}
  for path in model:named_modules { remove_duplicate = false } do known[path] = true end
  for _, name in ipairs(ordered.keys(model:state_dict { keep_vars = true })) do
    known[name] = true
    if ties.place_of(device_map, name) == nil then left[#left + 1] = name end
  end
  for _, key in ipairs(ordered.keys(device_map)) do
    if not known[key] then unknown[#unknown + 1] = tostring(key) end
  end
  if #unknown > 0 then
    notice.main("device_map: the model has no modules %s", table.concat(unknown, ", "))
  end
  if #left > 0 then
    fail("check_device_map: device_map gives these no device: %s", table.concat(left, ", "))
  end
end

--- Returns a place as a device: "cuda:0" for 0, "cpu", "disk". Raises where the device is not
--- there.
---@param where string
---@param place any
---@return string
function M.device_of(where, place)
  if type(place) == "number" then place = ("cuda:%d"):format(place) end
  if place == "cuda" then place = "cuda:0" end
  if place == "cpu" or place == "disk" then return place end
  local fine, why = false, ""
  if type(place) == "string" and place:find "^cuda:%d+$" then
    fine, why = pcall(core.empty, 0, { device = place })
    why = ", which is not here: " .. tostring(why):gsub("^%S-:%d+: ", ""):gsub("^empty: ", "")
  end
  if fine then return place end
  fail("%s: device_map: expected the number of a GPU, \"cuda:N\", \"cpu\" or \"disk\", got %s%s", where,
    options.show(place), why)
end

return M
