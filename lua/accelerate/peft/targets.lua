--- Which modules of a model get adapters.

local class = require "accelerate.utils.class"
local lists = require "accelerate.utils.lists"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local regex = require "accelerate.utils.regex"

local M = {}

-- What PEFT takes where a configuration does not say.
local DEFAULTS = {}
for targets, types in pairs {
  ["c_attn"] = "gpt2", ["q_proj v_proj"] = "llama mistral qwen2 qwen3 gemma gemma2 " ..
    "starcoder2 granite smollm3 olmo2",
  ["query value"] = "bert roberta electra vit albert", ["q_lin v_lin"] = "distilbert", ["q v"] = "t5",
  ["qkv_proj"] = "phi3",
} do
  for name in types:gmatch "%S+" do DEFAULTS[name] = targets end
end

local function ends_with(path, name) return path == name or path:sub(-#name - 1) == "." .. name end

--- Returns a function that says whether a path is named: by a list of names and ends of paths, or
--- by a regular expression for the whole path.
---@param given string|string[]
---@return fun(path: string): boolean
function M.matcher(given)
  if type(given) == "string" then return regex.full_match(given) end
  return function(path)
    for _, name in ipairs(given) do
      if ends_with(path, name) then return true end
    end
    return false
  end
end

-- Whether a path's number of a block is wanted: the first one behind the name of a list of blocks.
-- A layer whose whole path is given counts as it is.
local function of_blocks(config)
  local blocks, patterns, wanted = config.layers_to_transform, config.layers_pattern, {}
  if blocks == nil or type(blocks) == "table" and not blocks[1] then return function() return true end end
  for _, number in ipairs(type(blocks) == "table" and blocks or { blocks }) do wanted[number] = true end
  if type(patterns) == "string" then patterns = patterns ~= "" and { patterns } or nil end
  local names = {}
  for i, pattern in ipairs(patterns or {}) do names[i] = regex.full_match("(.*\\.)?" .. pattern) end
  local whole = lists.set(type(config.target_modules) == "table" and config.target_modules or {})
  return function(path)
    if whole[path] then return true end
    local from = 1
    while true do
      local at, after, number = path:find("%.(%d+)%.", from)
      if not at then return false end
      local before = path:sub(1, at - 1)
      if not names[1] and before:find(".", 1, true) then return wanted[tonumber(number)] or false end
      for _, matches in ipairs(names) do
        if matches(before) then return wanted[tonumber(number)] or false end
      end
      from = after
    end
  end
end

--- Returns a function that gives a layer's value by its path: `default`, or another one where a
--- pattern is the path's end.
---@param field string what messages call the patterns
---@param patterns table<string, number>?
---@param default number
---@return fun(path: string): number
function M.by_pattern(field, patterns, default)
  local list = {}
  for _, pattern in ipairs(ordered.sorted_keys(patterns or {})) do
    list[#list + 1] = { pattern, regex.full_match(("(.*\\.)?(%s)"):format(pattern), field),
      patterns[pattern] }
  end
  return function(path)
    local found
    for _, item in ipairs(list) do
      if item[2](path) then
        if found and found[3] ~= item[3] then
          options.fail("LoraConfig: %s: '%s' and '%s' both fit %s, with %g and %g", field, found[1], item[1],
            path, found[3], item[3])
        end
        found = item
      end
    end
    return found and found[3] or default
  end
end

-- Whether a path is of a module that is trained as a whole, or of one in it.
local function inside_saved(names)
  local list = {}
  for i, name in ipairs(names or {}) do list[i] = regex.full_match(("(.*\\.)?%s(\\..*)?"):format(name)) end
  return function(path)
    for _, matches in ipairs(list) do
      if matches(path) then return true end
    end
    return false
  end
end

-- The layers behind which scores come: "all-linear" leaves them out.
local HEADS = { lm_head = true, score = true, classifier = true, cls = true, vocab_projector = true,
  qa_outputs = true }

local function targets_of(model, config)
  local given = config.target_modules
  if given == "all-linear" then
    return function(path, module) return class.is(module, nn.Linear) and not HEADS[path:match "^[^.]*"] end
  elseif given ~= nil then
    return M.matcher(given)
  end
  local kind = type(model.config) == "table" and model.config.model_type
  local names = DEFAULTS[kind]
  if not names then
    options.fail("get_peft_model: LoraConfig.target_modules must name layers: there is no default for %s",
      kind and ("models of type '%s'"):format(kind) or "this model")
  end
  local list = {}
  for name in names:gmatch "%S+" do list[#list + 1] = name end
  return M.matcher(list)
end

local function shown(given)
  if type(given) ~= "table" then return options.show(given) end
  return '{ "' .. table.concat(given, '", "') .. '" }'
end

-- The last parts of the names of linear layers, each once, for messages.
local function endings(model)
  local list, seen = {}, {}
  for path, module in model:named_modules() do
    local last = class.is(module, nn.Linear) and path:match "[^.]*$"
    if last and not seen[last] then list[#list + 1], seen[last] = last, true end
  end
  return list[1] and table.concat(list, ", ") or "nothing: there are none"
end

--- Returns the modules that get an adapter, as { parent, name, module, path }. Raises where one is
--- no linear layer, or where there is none.
---@param model accelerate.nn.Module
---@param config accelerate.peft.LoraConfig
---@param taken fun(module: accelerate.nn.Module): boolean modules that stand for a layer already
---@return table[]
function M.find(model, config, taken)
  local wanted = targets_of(model, config)
  local left_out = config.exclude_modules and M.matcher(config.exclude_modules)
  local is_saved, in_blocks = inside_saved(config.modules_to_save), of_blocks(config)
  local list, inside = {}, {}
  for path, module in model:named_modules() do
    for _, child in ipairs(module:_own("module")) do
      local at = path == "" and child[1] or path .. "." .. child[1]
      if inside[module] or taken(module) then
        inside[child[2]] = true
      elseif wanted(at, child[2]) and in_blocks(at) and not is_saved(at)
        and not (left_out and left_out(at)) then
        if not taken(child[2]) and not class.is(child[2], nn.Linear) then
          options.fail("get_peft_model: target_modules: '%s' is %s; adapters are for linear layers", at,
            child[2].__name)
        end
        list[#list + 1] = { module, child[1], child[2], at }
      end
    end
  end
  if #list == 0 then
    options.fail("get_peft_model: target_modules %s names no layer of the model%s; " ..
      "its linear layers end in %s", shown(config.target_modules),
      config.layers_to_transform and " in the blocks of layers_to_transform" or "", endings(model))
  end
  return list
end

return M
