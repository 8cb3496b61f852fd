--- from_pretrained: a model of a folder in Hugging Face's layout.

local config = require "accelerate.models.config"
local core = require "accelerate.core"
local folders = require "accelerate.models.folder"
local foreign = require "accelerate.models.foreign"
local fs = require "accelerate.utils.fs"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local prefixes = require "accelerate.utils.prefixes"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

-- ---- names --------------------------------------------------------------------------------------

-- Does any name of the list begin with `prefix` and a dot?
local function any_begins(names, prefix)
  for _, name in ipairs(names) do
    if name:sub(1, #prefix + 1) == prefix .. "." then return true end
  end
  return false
end

-- A function that gives the model's name for a name of a file with `names`, or nil for what is left
-- out: old names of norms, and the base model's prefix added or taken away where only one side has
-- it.
local function namer(traits, known, own, names)
  local prefix = traits.prefix
  local theirs = prefix and any_begins(names, prefix)
  local mine = prefix and any_begins(own, prefix)
  return function(name)
    local new = name:gsub("LayerNorm%.gamma$", "LayerNorm.weight"):gsub("LayerNorm%.beta$", "LayerNorm.bias")
    if theirs and not mine and new:sub(1, #prefix + 1) == prefix .. "." then
      new = new:sub(#prefix + 2)
    elseif mine and not theirs and not known[new] then
      new = prefix .. "." .. new
    end
    if traits.rename and not known[new] then new = traits.rename(new) end
    return new
  end
end

-- The tensors of a file under the model's names, and the file's name of each.
local function renamed(model, dict)
  local own = ordered.keys(model:state_dict())
  local new_name = namer(model.traits, lists.set(own), own, ordered.keys(dict))
  local result, originals = ordered.new(), {}
  for name, t in ordered.pairs(dict) do
    local new = new_name(name)
    if new then result[new], originals[new] = t, name end
  end
  return result, originals
end

-- The prefix of the file's unexpected names without which the model would have them, or nil.
local function surplus(model, unexpected)
  local own = ordered.keys(model:state_dict())
  local known = lists.set(own)
  return prefixes.surplus(unexpected, function(rest)
    return known[namer(model.traits, known, own, { rest })(rest)]
  end)
end

-- ---- values -------------------------------------------------------------------------------------

-- Takes tensors of other shapes than the model's out of dict; returns them as lines.
local function take_mismatched(model, dict)
  local lines, mine = {}, model:state_dict()
  for name, t in ordered.pairs(mine) do
    local value = dict[name]
    if value and not lists.same(value.shape, t.shape) then
      lines[#lines + 1] = ("%s: the files have %s, the model has %s"):format(name, lists.shape_text(value),
        lists.shape_text(t))
      dict[name] = nil
    end
  end
  return lines
end

-- The names that are not described by a line of take_mismatched.
local function without(names, lines)
  local described, rest = {}, {}
  for _, line in ipairs(lines) do described[line:match("^[^:]*")] = true end
  for _, name in ipairs(names) do
    if not described[name] then rest[#rest + 1] = name end
  end
  return rest
end

local function in_dtype(dict, dtype)
  for name, t in ordered.pairs(dict) do
    if core._is_float(t) and t.dtype ~= dtype then dict[name] = t:to(dtype) end
  end
end

local function first_float(dict)
  for _, t in ordered.pairs(dict) do
    if core._is_float(t) then return t.dtype end
  end
  return "float32"
end

-- Draws the parameters under the given names anew, those that the files lack.
local function init_missing(model, names)
  local wanted = lists.set(names)
  for path, module in model:named_modules() do
    for name, p in module:named_parameters { recurse = false } do
      if wanted[path == "" and name or path .. "." .. name] then model:_init_parameter(module, name, p) end
    end
  end
end

local function report(where, name, model, info)
  if #info.unexpected_keys > 0 then
    local prefix = #info.missing_keys > 0 and surplus(model, info.unexpected_keys)
    notice.main("%s: these weights of %s are not used: %s%s", where, name,
      table.concat(info.unexpected_keys, ", "), prefix and "; " .. prefixes.remedy(prefix) or "")
  end
  if #info.missing_keys + #info.mismatched_keys > 0 then
    local list = {}
    for _, key in ipairs(info.missing_keys) do list[#list + 1] = key end
    for _, line in ipairs(info.mismatched_keys) do list[#list + 1] = line end
    notice.main("%s: these weights are not in %s and start new, so train the model before use: %s", where,
      name, table.concat(list, ", "))
  end
end

-- ---- from_pretrained ----------------------------------------------------------------------------

local OPTIONS = {
  dtype = { "string", default = "float32", one_of = { "float32", "float64", "float16", "bfloat16", "auto" } },
  device = { "string", optional = true },
  num_labels = { "integer", optional = true, min = 1 },
  config = { "table", optional = true },
  revision = { "string", default = "main" },
  cache_dir = { "string", optional = true },
  ignore_mismatched_sizes = { "boolean", default = false },
}

-- config.json with what the call says instead, the keys of floats and those of nulls.
local function configuration(where, folder, o)
  local given, floats, nulls = config.read(where, fs.join(folder, "config.json"))
  for key, value in next, o.config or {} do given[key] = value end
  if o.num_labels then
    given.num_labels = o.num_labels
    local named = given.id2label and ordered.count(given.id2label)
    if named ~= o.num_labels then given.id2label, given.label2id = nil, nil end
  end
  return given, floats, nulls
end

--- Returns a model in evaluation mode with the weights of a folder, and what did not fit by name.
--- `Class.from_pretrained(name, opts)` and `models.from_pretrained(name, opts)` are this.
---@param choose table|fun(config: table, where: string): table the class, or what picks it
---@param name string a folder, or a name in the local Hugging Face cache
---@param opts? table
---@return accelerate.models.PreTrainedModel
---@return { missing_keys: string[], unexpected_keys: string[], mismatched_keys: string[] }
function M.load(choose, name, opts)
  local where = type(choose) == "table" and choose.__name .. ".from_pretrained" or "from_pretrained"
  local o = options.check(where, opts, OPTIONS)
  options.value(where, "name", name, { "string" })
  local folder = folders.find(where, name, o)
  local given, floats, nulls = configuration(where, folder, o)
  local Class = type(choose) == "table" and choose or choose(given, where)
  if given.model_type and given.model_type ~= Class.traits.model_type then
    fail("%s: %s holds a model of type '%s'; %s is of type '%s'", where, folder, given.model_type,
      Class.__name, Class.traits.model_type)
  end
  foreign.check_config(where, folder, given)
  config.keep_nulls(given, nulls, Class.traits.config)
  local file = folders.weights(where, folder)
  local dict = foreign.reading(where, file, function() return weights.read_checkpoint(file) end)
  local dtype = o.dtype == "auto" and first_float(dict) or o.dtype
  local model = nn.init._skip(Class, given)
  model._float_keys = floats
  if dtype ~= "float32" then model:to(dtype) end
  local originals
  dict, originals = renamed(model, dict)
  foreign.check_weights(where, file, model:state_dict(), dict)
  in_dtype(dict, dtype)
  local mismatched = take_mismatched(model, dict)
  if #mismatched > 0 and not o.ignore_mismatched_sizes then
    fail("%s: weights of %s do not fit %s (ignore_mismatched_sizes = true starts them new):\n  %s", where,
      name, Class.__name, table.concat(mismatched, "\n  "))
  end
  local info = model:load_state_dict(dict, { strict = false, assign = true })
  init_missing(model, info.missing_keys)
  info.missing_keys, info.mismatched_keys = without(info.missing_keys, mismatched), mismatched
  for i, key in ipairs(info.unexpected_keys) do info.unexpected_keys[i] = originals[key] or key end
  report(where, name, model, info)
  model.generation_config = require("accelerate.models.generation_options").of_folder(where, folder)
  if o.device then model:to(o.device) end
  return model:eval(), info
end

return M
