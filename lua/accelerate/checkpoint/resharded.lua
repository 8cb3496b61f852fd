--- Loading what accelerate.checkpoint.sharded has saved, on any number of ranks, sharded or not:
--- each rank reads its own elements from the mapped files.
local boxes = require "accelerate.checkpoint.boxes"
local core = require "accelerate.core"
local dcp = require "accelerate.checkpoint.dcp"
local fs = require "accelerate.utils.fs"
local intervals = require "accelerate.checkpoint.intervals"
local lists = require "accelerate.utils.lists"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parallel = require "accelerate.parallel"
local sharded = require "accelerate.checkpoint.sharded"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

-- ---- models

-- The ranks' files of a model, from rank 0 on.
local function rank_files(source, i)
  local list = {}
  for rank = 0, math.huge do
    local name = sharded.names.model_of_rank(i, rank)
    if not source.files[name] then return list end
    list[rank + 1] = fs.join(source.path, name)
  end
end

-- A reader of the i-th model, and what its names begin with; nil where the checkpoint has none of
-- these forms.
local function open_model(source, i)
  local names = sharded.names
  local folder = names.model_folder(i)
  if source.files[folder .. "/.metadata"] then
    return dcp.open(fs.join(source.path, folder), "load_state"), "model."
  end
  local whole, ranks = names.model(i), rank_files(source, i)
  if source.files[whole] then ranks = { fs.join(source.path, whole) } end
  if #ranks > 0 then return intervals.open_files("load_state", source.path, ranks), "" end
  local plain = weights.listed(i, source.files)
  if plain then return intervals.open(fs.join(source.path, plain), "load_state"), "" end
end

-- The name under which a reader has a value of the model: a tied parameter may be under any of its
-- names.
local function key_of(reader, prefix, name, piece)
  if reader:has(prefix .. name) then return prefix .. name end
  for _, other in ipairs(piece and piece.names or {}) do
    if reader:has(prefix .. other) then return prefix .. other end
  end
end

-- What of a model and a reader does not fit, as lines; strict raises for names, and shapes always
-- do.
local function check_model(reader, prefix, dict, piece_of, strict)
  local missing, unexpected = {}, {}
  for name, t in ordered.pairs(dict) do
    local key = key_of(reader, prefix, name, piece_of[t])
    if not core.is_tensor(t) then
      if not reader:has_object(prefix .. name) then missing[#missing + 1] = name end
    elseif not key then missing[#missing + 1] = name
    elseif not lists.same(reader:shape(key), t.shape) then
      reader:fail("'%s' has shape %s, the model has %s", key, lists.shape_text(reader:shape(key)),
        lists.shape_text(t))
    end
  end
  for _, key in ipairs(reader:names()) do
    if key:sub(1, #prefix) ~= prefix or dict[key:sub(#prefix + 1)] == nil then
      unexpected[#unexpected + 1] = key
    end
  end
  local faults = {}
  if #missing > 0 then faults[1] = "missing keys: " .. table.concat(missing, ", ") end
  if #unexpected > 0 then faults[#faults + 1] = "unexpected keys: " .. table.concat(unexpected, ", ") end
  if #faults == 0 then return end
  local text = ("load_state: %s does not fit the model: %s"):format(reader.path, table.concat(faults, "; "))
  if strict then fail("%s", text) end
  notice.main("%s", text)
end

-- Reads elements into a tensor where it lies.
local function read_whole(reader, key, t)
  t = t:detach()
  if t:is_contiguous() then reader:read(key, 0, t:numel(), t:reshape(-1))
  else t:copy_(reader:tensor(key)) end
end

--- Loads the weights of the i-th model, also from the files of a run that was not sharded. Returns
--- whether the checkpoint has any.
---@param model accelerate.nn.Module
---@param source accelerate.CheckpointSource
---@param i integer from 1
---@param strict boolean
---@return boolean
function M.load_model(model, source, i, strict)
  local reader, prefix = open_model(source, i)
  if not reader then return false end
  local dict, piece_of, objects = model:state_dict { keep_vars = true }, {}, ordered.new()
  local named = {}
  for _, piece in ipairs(parallel.pieces_of(model)) do
    piece_of[piece.param] = piece
    for _, name in ipairs(piece.names) do named[name] = piece end
  end
  check_model(reader, prefix, dict, piece_of, strict)
  parallel.meet(model)
  core.no_grad(function()
    for name, t in ordered.pairs(dict) do
      local piece = piece_of[t]
      local key = key_of(reader, prefix, name, piece)
      if not core.is_tensor(t) then
        if reader:has_object(prefix .. name) then objects[name] = reader:object(prefix .. name) end
      elseif key and piece and piece.cut then
        if piece.n > 0 then reader:read(key, piece.from, piece.n, piece.tensor) end
      elseif key and not piece and parallel.is_formed(named[name], t) then
        parallel.take_formed(named[name], reader:tensor(key))
      elseif key then read_whole(reader, key, t) end
    end
  end)
  reader:close()
  if next(objects) ~= nil then model:load_state_dict(objects, { strict = false }) end
  parallel.pieces_changed(model)
  return true
end

-- ---- optimizers

-- The number of each parameter by its name, and the groups' parameters as lists of numbers.
local function numbers_of(optimizer, names)
  local number_of, groups, number = {}, {}, 0
  for g, group in ipairs(optimizer.param_groups) do
    groups[g] = {}
    for i, p in ipairs(group.params) do
      if names[p] then number_of[names[p]] = number end
      groups[g][i] = number
      number = number + 1
    end
  end
  return number_of, groups
end

-- A saved group with this optimizer's numbers in place of names.
local function renumbered(saved, group, numbers, number_of, g, path)
  local params = type(saved) == "table" and saved.params
  if type(params) ~= "table" or #params ~= #numbers then
    fail("load_state: %s: group %d has %s parameters, the optimizer's has %d", path, g - 1,
      type(params) == "table" and #params or "no", #numbers)
  end
  for _, name in ipairs(params) do
    if not number_of[name] then
      fail("load_state: %s: group %d has the parameter %s, which is in none of the optimizer's groups", path,
        g - 1, options.show(name))
    end
  end
  local copy = {}
  for key, value in next, saved do copy[key] = value end
  copy.params = numbers
  return copy
end

--- Returns a state dict whose parameters are named, as Accelerate's FSDP saves it, with this
--- optimizer's numbers; another one as it is.
---@param dict any
---@param optimizer accelerate.optim.Optimizer
---@param names table<accelerate.Tensor, string>
---@param path string for messages
---@return any
function M.with_numbers(dict, optimizer, names, path)
  local groups = type(dict) == "table" and dict.param_groups
  local first = type(groups) == "table" and type(groups[1]) == "table" and groups[1].params
  if type(first) ~= "table" or type(first[1]) ~= "string" or type(dict.state) ~= "table" then return dict end
  local number_of, numbers = numbers_of(optimizer, names)
  local result = { state = {}, param_groups = {} }
  for name, entry in next, dict.state do
    if not number_of[name] then
      fail("load_state: %s has a state of %s, which the optimizer does not have", path, options.show(name))
    end
    result.state[number_of[name]] = entry
  end
  for g, saved in ipairs(groups) do
    result.param_groups[g] = numbers[g]
      and renumbered(saved, optimizer.param_groups[g], numbers[g], number_of, g, path) or saved
  end
  return result
end

-- The parameter and the key of a state's name.
local function state_of(reader, name)
  local path = reader:path_of(name)
  if #path == 4 and path[2] == "state" then return path[3], path[4] end
  return name:match "^optimizer%.state%.(.+)%.([^.]+)$"
end

local function groups_from(reader)
  local groups = {}
  for _, name in ipairs(reader:object_names()) do
    local g, key = name:match "^optimizer%.param_groups%.(%d+)%.(.+)$"
    if g then
      g = tonumber(g) + 1
      groups[g] = groups[g] or {}
      groups[g][key] = reader:object(name)
    end
  end
  return groups
end

-- A state of a parameter: what this rank keeps of it. factor: see Optimizer:_is_factor.
local function read_state(reader, name, piece, factor)
  local shape = reader:shape(name)
  if #shape == 0 then return reader:tensor(name):item() end
  if piece and piece.cut and not factor and lists.same(shape, piece.param.shape) then
    return reader:lend(name, piece.from, piece.n)
  end
  return reader:lend(name, 0, boxes.count(shape)):view(shape)
end

--- Loads the i-th optimizer's state from its folder. Returns whether the checkpoint has one.
---@param optimizer accelerate.optim.Optimizer
---@param source accelerate.CheckpointSource
---@param i integer from 1
---@param names table<accelerate.Tensor, string>
---@return boolean
function M.load_optimizer(optimizer, source, i, names)
  local folder = sharded.names.optimizer_folder(i)
  if not source.files[folder .. "/.metadata"] then return false end
  local reader, piece_of = dcp.open(fs.join(source.path, folder), "load_state"), {}
  for _, piece in ipairs(parallel.state_pieces(optimizer)) do
    if names[piece.param] then piece_of[names[piece.param]] = piece end
  end
  local dict = { state = {}, param_groups = groups_from(reader) }
  local function entry_of(name)
    dict.state[name] = dict.state[name] or {}
    return dict.state[name]
  end
  for _, name in ipairs(reader:names()) do
    local param, key = state_of(reader, name)
    if param then
      entry_of(param)[key] = read_state(reader, name, piece_of[param], optimizer:_is_factor(key))
    end
  end
  for _, name in ipairs(reader:object_names()) do
    local param, key = state_of(reader, name)
    if param then entry_of(param)[key] = reader:object(name) end
  end
  optimizer:load_state_dict(M.with_numbers(dict, optimizer, names, reader.path))
  reader:check()
  reader:close()
  return true
end

return M
