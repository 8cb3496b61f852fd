--- from_pretrained: a model of a folder in Hugging Face's layout.

local big_modeling = require "accelerate.big_modeling"
local config = require "accelerate.models.config"
local core = require "accelerate.core"
local folders = require "accelerate.models.folder"
local foreign = require "accelerate.models.foreign"
local fs = require "accelerate.utils.fs"
local notice = require "accelerate.messages.notice"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local prefixes = require "accelerate.utils.prefixes"
local quantisation = require "accelerate.quantisation"
local dispatching = require "accelerate.big_modeling.dispatch"
local placing = require "accelerate.big_modeling.loading"
local tensors = require "accelerate.hooks.tensors"
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

-- The sources of a checkpoint under the model's names.
local function renamed(model, sources)
  local own = ordered.keys(model:state_dict())
  local new_name = namer(model.traits, lists.set(own), own, ordered.keys(sources))
  local result = ordered.new()
  for name, source in ordered.pairs(sources) do
    local new = new_name(name)
    if new then result[new] = source end
  end
  return result
end

-- The sources' tensors, which take no memory where they are in safetensors files.
local function lent(sources)
  local dict = ordered.new()
  for name, source in ordered.pairs(sources) do dict[name] = weights.lend(source) end
  return dict
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
  for name, t in model:named_parameters { remove_duplicate = false } do
    if not core._is_float(t) then mine[name] = nil end -- a layer with codes looks at all of its parts
  end
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

-- What becomes codes (`mine`: the tensors of the model) is read once, by the layer, and stays as it
-- is; of the rest the mapped files are left.
local function in_dtype(dict, dtype, mine)
  for name, t in ordered.pairs(dict) do
    local own = mine[name]
    if own and core._is_float(own) and core._is_float(t) then
      dict[name] = t.dtype ~= dtype and t:to(dtype) or t:clone()
    end
  end
end

local function first_float(dict)
  for _, t in ordered.pairs(dict) do
    if core._is_float(t) then return t.dtype end
  end
  return "float32"
end

-- The names of the model that no source has, and those of sources that the model has not. A tensor
-- of several names is found under any of them.
local function compare(own, names, sources)
  local found, missing, unexpected = {}, {}, {}
  for name in ordered.pairs(sources) do
    if own[name] then found[own[name].t] = true else unexpected[#unexpected + 1] = sources[name].name end
  end
  for _, name in ipairs(names) do
    if own[name] and not found[own[name].t] then missing[#missing + 1] = name end
  end
  return missing, unexpected
end

-- Makes the parameters under the given names, which the files lack, and draws them.
local function init_missing(model, own, names, dtype)
  local wanted = lists.set(names)
  for _, name in ipairs(names) do
    local t = own[name].t
    if t.device == "meta" then
      tensors.adopt(t, core.empty(t.shape, { dtype = core._is_float(t) and dtype or t.dtype }))
    end
  end
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
  dtype = { "string", optional = true, one_of = { "float32", "float64", "float16", "bfloat16", "auto" } },
  device = { "string", optional = true },
  num_labels = { "integer", optional = true, min = 1 },
  config = { "table", optional = true },
  revision = { "string", default = "main" },
  cache_dir = { "string", optional = true },
  ignore_mismatched_sizes = { "boolean", default = false },
  device_map = { "string|table", optional = true },
  max_memory = { "table", optional = true },
  offload_folder = { "string", optional = true },
  offload_state_dict = { "boolean", optional = true },
  offload_buffers = { "boolean", default = false },
  quantization_config = { "table", optional = true },
}

-- What goes with a device map alone.
local function check_map(where, o)
  if o.device_map then
    if o.device then fail("%s: give device_map or device, not both", where) end
    return
  end
  for _, name in ipairs { "max_memory", "offload_folder", "offload_state_dict" } do
    if o[name] ~= nil then fail("%s: %s goes with a device_map", where, name) end
  end
end

-- Fills the model from the sources, one tensor at a time, so that each is in memory once.
local function fill(where, model, own, sources, map, dtype, o)
  local main, done = placing.main_device(where, map), {}
  local how = { where = where, dtype = dtype, offload_folder = o.offload_folder,
    offload_buffers = o.offload_buffers }
  if o.offload_folder then assert(fs.make_dirs(o.offload_folder)) end
  for name, entry in ordered.pairs(own) do -- the order of the model is about that of its use
    local source = not done[entry.t] and sources[name]
    if source then
      placing.place(model, entry, name, source, map, main, how)
      done[entry.t], source.tensor = true, nil
    end
  end
  weights.check_sources(sources)
end

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

-- The model as from_pretrained returns it, once it has its values.
local function finished(where, folder, model, o, map)
  model.generation_config = require("accelerate.models.generation_options").of_folder(where, folder)
  if o.device then model:to(o.device) end
  if map then
    dispatching.dispatch_model(model, map, { offload_dir = o.offload_folder,
      offload_buffers = o.offload_buffers })
  end
  return model:eval()
end

-- Fills a model without values whose linear layers rest in an encoding. Returns what did not fit.
local function load_encoded(where, name, model, encoding, file, o)
  if o.device_map then
    fail("%s: device_map: parts of a model with a quantization_config on several devices are not there yet",
      where)
  end
  quantisation.replace(model, encoding)
  local dict = renamed(model,
    foreign.reading(where, file, function() return (weights.lend_checkpoint(file)) end))
  local dtype = o.dtype == "auto" and first_float(dict) or o.dtype or encoding.torch_dtype
  in_dtype(dict, dtype, model:state_dict())
  local mismatched = take_mismatched(model, dict)
  if #mismatched > 0 and not o.ignore_mismatched_sizes then
    fail("%s: weights of %s do not fit %s (ignore_mismatched_sizes = true starts them new):\n  %s", where,
      name, model.__name, table.concat(mismatched, "\n  "))
  end
  local info = model:load_state_dict(dict, { strict = false, assign = true })
  for _, b in ipairs(model:buffers()) do parameter.convert(b, dtype) end
  quantisation.check_filled(where, file, model)
  local own = {}
  for path, t in model:named_parameters { remove_duplicate = false } do own[path] = { t = t } end
  for path, t in model:named_buffers() do own[path] = { t = t } end
  init_missing(model, own, info.missing_keys, dtype)
  quantisation.settle(model, encoding, dtype)
  info.missing_keys, info.mismatched_keys = without(info.missing_keys, mismatched), mismatched
  report(where, name, model, info)
  return info
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
  check_map(where, o)
  options.value(where, "name", name, { "string" })
  local folder = folders.find(where, name, o)
  local given, floats, nulls = configuration(where, folder, o)
  local Class = type(choose) == "table" and choose or choose(given, where)
  if given.model_type and given.model_type ~= Class.traits.model_type then
    fail("%s: %s holds a model of type '%s'; %s is of type '%s'", where, folder, given.model_type,
      Class.__name, Class.traits.model_type)
  end
  local encoding = quantisation.of_model(where, folder, given, o.quantization_config)
  if not encoding then foreign.check_config(where, folder, given) end
  config.keep_nulls(given, nulls, Class.traits.config)
  local file = folders.weights(where, folder)
  local model = big_modeling.init_empty_weights(Class, given)
  model._float_keys = floats
  if encoding then
    local info = load_encoded(where, name, model, encoding, file, o)
    return finished(where, folder, model, o), info
  end
  local sources = renamed(model, weights.sources(file))
  local dict = foreign.reading(where, file, function() return lent(sources) end)
  local dtype = o.dtype == "auto" and first_float(dict) or o.dtype or "float32"
  foreign.check_weights(where, file, model:state_dict(), dict)
  local mismatched = take_mismatched(model, dict)
  if #mismatched > 0 and not o.ignore_mismatched_sizes then
    fail("%s: weights of %s do not fit %s (ignore_mismatched_sizes = true starts them new):\n  %s", where,
      name, Class.__name, table.concat(mismatched, "\n  "))
  end
  for key in ordered.pairs(sources) do
    if dict[key] == nil then sources[key] = nil end
  end
  dict = nil -- luacheck: ignore 311
  local own = placing.own_tensors(model)
  local missing, unexpected = compare(own, ordered.keys(model:state_dict()), sources)
  local map = o.device_map and dispatching.resolve_map(where, model, o.device_map,
    { max_memory = o.max_memory,
    dtype = dtype, offload_buffers = o.offload_buffers })
  fill(where, model, own, sources, map or { [""] = "cpu" }, dtype, o)
  init_missing(model, own, missing, dtype)
  for _, b in ipairs(model:buffers()) do parameter.convert(b, dtype) end
  local info = { missing_keys = without(missing, mismatched), unexpected_keys = unexpected,
    mismatched_keys = mismatched }
  report(where, name, model, info)
  return finished(where, folder, model, o, map), info
end

return M
