--- from_pretrained: a model of a folder in Hugging Face's layout.

local big_modeling = require "accelerate.big_modeling"
local config = require "accelerate.models.config"
local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local device_maps = require "accelerate.big_modeling.device_map"
local folders = require "accelerate.models.folder"
local foreign = require "accelerate.models.foreign"
local fs = require "accelerate.utils.fs"
local gguf_files = require "accelerate.models.gguf"
local notice = require "accelerate.messages.notice"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local parts = require "accelerate.big_modeling.parts"
local prefixes = require "accelerate.utils.prefixes"
local quantisation = require "accelerate.quantisation"
local dispatching = require "accelerate.big_modeling.dispatch"
local placing = require "accelerate.big_modeling.loading"
local tensors = require "accelerate.hooks.tensors"
local their_options = require "accelerate.models.their_options"
local ties = require "accelerate.big_modeling.ties"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

-- ---- names

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

-- Shapes and types of the sources' tensors.
local function described(sources)
  local dict = ordered.new()
  for name, source in ordered.pairs(sources) do dict[name] = weights.describe(source) end
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

-- ---- values

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
  local mismatched, rest = {}, {}
  for _, line in ipairs(lines) do mismatched[line:match("^[^:]*")] = true end
  for _, name in ipairs(names) do
    if not mismatched[name] then rest[#rest + 1] = name end
  end
  return rest
end

local function first_float(dict)
  for _, t in ordered.pairs(dict) do
    if core._is_float(t) then return t.dtype end
  end
  return "float32"
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

-- ---- from_pretrained

local OPTIONS = {
  dtype = { "string", optional = true, one_of = { "float32", "float64", "float16", "bfloat16", "auto" } },
  device = { "string", optional = true },
  num_labels = { "integer", optional = true, min = 1 },
  config = { "table", optional = true },
  revision = { "string", default = "main" },
  cache_dir = { "string", optional = true },
  ignore_mismatched_sizes = { "boolean", default = false },
  device_map = { "string|table|integer", optional = true },
  max_memory = { "table", optional = true },
  offload_folder = { "string", optional = true },
  offload_state_dict = { "boolean", optional = true },
  offload_buffers = { "boolean", default = false },
  quantization_config = { "table", optional = true },
  gguf_file = { "string", optional = true },
  dequantize = { "boolean", default = false },
  output_loading_info = { "boolean", default = false },
}

-- Turns one place for all ({device_map = "cpu"}) into a map. Refuses options that need a map.
local function check_map(where, o)
  local one = o.device_map
  if type(one) == "number" or type(one) == "string"
    and (one:find "^cuda" or one == "cpu" or one == "disk") then
    o.device_map = { [""] = one } -- the whole model in one place, as Transformers takes it
  end
  if o.device_map then
    if o.device then fail("%s: give device_map or device, not both", where) end
    if o.dequantize then fail("%s: give device_map or dequantize, not both", where) end
    return
  end
  for _, name in ipairs { "max_memory", "offload_folder", "offload_state_dict" } do
    if o[name] ~= nil then fail("%s: %s goes with a device_map", where, name) end
  end
end

-- config.json, or what a GGUF file says, with what the call says instead, the keys of floats and
-- those of nulls.
local function configuration(where, folder, o, gguf, Class)
  local given, floats, nulls
  if gguf then given, floats, nulls = gguf:config_for(Class), {}, {}
  else
    foreign.check_folder(where, folder)
    given, floats, nulls = config.read(where, fs.join(folder, "config.json"))
  end
  for key, value in next, o.config or {} do given[key] = value end
  if o.num_labels then
    given.num_labels = o.num_labels
    local named = given.id2label and ordered.count(given.id2label)
    if named ~= o.num_labels then given.id2label, given.label2id = nil, nil end
  end
  return given, floats, nulls
end

local FOLDER = { revision = OPTIONS.revision, cache_dir = OPTIONS.cache_dir }

--- Returns the configuration of a folder with the architecture's defaults: what `from_config` and
--- classes of models take.
---@param choose fun(config: table, where: string): table
---@param name string a folder, or a name in the local Hugging Face cache
---@param opts table? revision, cache_dir, and keys of config.json
---@return table
function M.configuration(choose, name, opts)
  local where, from, keys = "AutoConfig.from_pretrained", {}, {}
  options.value(where, "name", name, { "string" })
  options.value(where, "opts", opts, { "table", optional = true })
  for key, value in next, opts or {} do
    if FOLDER[key] then from[key] = value else keys[key] = value end
  end
  local folder = folders.find(where, name, options.check(where, from, FOLDER))
  local given, _, nulls = configuration(where, folder, { config = keys, num_labels = keys.num_labels })
  local Class = choose(given, where)
  config.keep_nulls(given, nulls, Class.traits.config)
  local made = config.check(where, given, Class.traits.config)
  made.model_type = Class.traits.model_type
  config.note_misspelt(where, keys, Class.traits.config)
  return made
end

-- The model as from_pretrained returns it, once it has its values.
local function finished(where, folder, model, o, map)
  model.generation_config = folder
    and require("accelerate.models.generation_options").of_folder(where, folder) or nil
  if o.device then model:to(o.device) end
  if map then
    dispatching.dispatch_model(model, map, { offload_dir = o.offload_folder,
      offload_buffers = o.offload_buffers })
  end
  return model:eval()
end

-- Raises where a layer has got no codes.
local function check_filled(where, file, own)
  for name, entry in ordered.pairs(own) do
    if entry.layer and entry.layer.weight.device == "meta" then
      fail("%s: %s lacks '%s'", where, file, name)
    end
  end
end

-- The map that the call's device_map stands for; nil: there is none.
local function map_of(where, model, dtype, type_of, o)
  if not o.device_map then return nil end
  local special
  for name, t in tensors.named_module_tensors(model, { recurse = true }) do
    local own = type_of and core._is_float(t) and (parameter.keeps_type(t) and t.dtype or type_of(name))
    if own and own ~= dtype then
      special = special or {}
      special[name] = own
    end
  end
  if type(o.device_map) == "table" then device_maps.check_device_map(model, o.device_map) end
  return dispatching.resolve_map(where, model, o.device_map, { max_memory = o.max_memory, dtype = dtype,
    special_dtypes = special, offload_buffers = o.offload_buffers })
end

--- Returns a model in evaluation mode with the weights of a folder.
--- `Class.from_pretrained(name, opts)` and `models.from_pretrained(name, opts)` are this.
---@param choose table|fun(config: table, where: string): table the class, or what picks it
---@param name string a folder, or a name in the local Hugging Face cache
---@param opts? table
---@return accelerate.models.PreTrainedModel
---@return { missing_keys: string[], unexpected_keys: string[], mismatched_keys: string[] }? info
---  with output_loading_info: the names of weights that did not fit
function M.load(choose, name, opts)
  local where = type(choose) == "table" and choose.__name .. ".from_pretrained" or "from_pretrained"
  local taken, keys = their_options.taken(where, opts, OPTIONS)
  local o = options.check(where, taken, OPTIONS)
  check_map(where, o)
  options.value(where, "name", name, { "string" })
  local gguf = gguf_files.asked(where, name, o)
  local folder = gguf and gguf.folder or not gguf and folders.find(where, name, o) or nil
  local given, floats, nulls = configuration(where, folder, o, gguf, type(choose) == "table" and choose)
  local Class = type(choose) == "table" and choose or choose(given, where)
  if given.model_type and given.model_type ~= Class.traits.model_type then
    fail("%s: %s holds a model of type '%s'; %s is of type '%s'", where, folder or name, given.model_type,
      Class.__name, Class.traits.model_type)
  end
  their_options.into_config(where, keys, given, Class.traits.config, OPTIONS)
  local encoding = gguf or quantisation.of_model(where, folder, given, o.quantization_config)
  if o.dequantize and not encoding then
    fail("%s: dequantize: the weights of %s are plain numbers", where, name)
  end
  if not encoding then foreign.check_config(where, folder, given) end
  config.keep_nulls(given, nulls, Class.traits.config)
  local file = gguf and gguf.path or folders.weights(where, folder)
  local model = deferred.skip(big_modeling.init_empty_weights, Class, given)
  model._float_keys = floats
  local tied = encoding and ties.find_tied_parameters(model)
  local defers = not encoding and not o.device_map and deferred.is_wanted()
  local found = encoding and encoding:sources(file) or weights.sources(file, defers)
  if encoding then encoding:replace(model, found) end
  local sources, of_layers = parts.split(model, renamed(model, found), tied)
  local dict = foreign.reading(where, file, function() return described(sources) end)
  local dtype = o.dtype == "auto" and first_float(dict) or o.dtype or encoding and encoding.torch_dtype
    or "float32"
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
  local missing, unexpected = placing.compare(own, sources, of_layers)
  local type_of = encoding and encoding:types(model, dtype)
  local map = map_of(where, model, dtype, type_of, o)
  local unknown = placing.fill(model, own, sources, of_layers, map or { [""] = "cpu" },
    { where = where, dtype = dtype, type_of = type_of, offload_folder = o.offload_folder,
      offload_buffers = o.offload_buffers, defers = defers })
  if encoding then check_filled(where, file, own) end
  init_missing(model, own, missing, dtype)
  for _, b in ipairs(model:buffers()) do parameter.convert(b, dtype) end
  if encoding then encoding:mark(model) end
  for _, key in ipairs(unknown) do unexpected[#unexpected + 1] = key end
  local info = { missing_keys = without(missing, mismatched), unexpected_keys = unexpected,
    mismatched_keys = mismatched }
  report(where, name, model, info)
  if o.dequantize then model:dequantize(dtype) end
  model = finished(where, folder, model, o, map)
  if o.output_loading_info then return model, info end
  return model
end

return M
