--- Weights in files, safetensors or PyTorch's: one file, or shards with an index, under
--- Accelerate's names.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local deferred = require "accelerate.deferred"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local lists = require "accelerate.utils.lists"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local prefixes = require "accelerate.utils.prefixes"
local stored = require "accelerate.files.stored"

local fail = options.fail

local M = {}

-- The names of files, by safe_serialization.
local NAMES = {
  [true] = { whole = "model.safetensors", shard = "model-%05d-of-%05d.safetensors",
    index = "model.safetensors.index.json", stale = "^model%-%d%d%d%d%d%-of%-%d%d%d%d%d%.safetensors$" },
  [false] = { whole = "pytorch_model.bin", shard = "pytorch_model-%05d-of-%05d.bin",
    index = "pytorch_model.bin.index.json", stale = "^pytorch_model%-%d%d%d%d%d%-of%-%d%d%d%d%d%.bin$" },
}
local METADATA = { format = "pt" }  -- what PyTorch's users' tools look for

local UNITS = { KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12, KIB = 2 ^ 10, MIB = 2 ^ 20, GIB = 2 ^ 30,
  TIB = 2 ^ 40 }

--- Converts a size such as "5MB" to a number of bytes. KB, MB, GB and TB are decimal, KiB, MiB, GiB
--- and TiB binary.
--- A decimal unit that ends in a small b counts bits: "8Mb" is 1 MB.
---@param what string what messages call it
---@param size integer|string
---@return integer
function M.bytes_of(what, size)
  if type(size) == "number" then return size end
  local number, unit = tostring(size):match("^%s*([%d%.]+)%s*(%a+)%s*$")
  local factor = unit and UNITS[unit:upper()]
  if not factor or not tonumber(number) then
    fail("%s: expected a number of bytes or text such as \"5MB\" (KB, MB, GB, " ..
      "TB, KiB, MiB, GiB, TiB), got %s", what, options.show(size))
  end
  local bytes = math.floor(tonumber(number) * factor)
  return unit:find "^%a[bB]$" and unit:find "b$" and math.floor(bytes / 8) or bytes
end

--- Converts a size such as "5MB" to a number of bytes, as save_model's max_shard_size.
---@param size integer|string
---@return integer
function M.convert_file_size_to_int(size) return M.bytes_of("max_shard_size", size) end

-- Returns a key that is equal for tensors over one memory with one layout, also for different
-- objects (state_dict makes new ones).
function M.identity(t)
  if t:numel() == 0 then return t end
  return ("%.0f %s %s %s %s"):format(t:_address(), t.device, t.dtype, table.concat(t.shape, ","),
    table.concat(t:stride(), ","))
end

-- An offloaded weight where it rests, unless it has another type there: so it is not brought.
local function at_home(t)
  local home = core._offload_home(t)
  return home and home.dtype == t.dtype and lists.same(home.shape, t.shape) and home or t
end

--- The tensors of a state dict, each once, under its first name, with the other names that it has.
---@return { [1]: string, [2]: accelerate.Tensor, [3]: string?, others: string[] }[] third: the type
---  in a file, of bytes that stand for another one
local function without_shared(dict)
  local list, seen = {}, {}
  for name, t in ordered.pairs(dict) do
    if not core.is_tensor(t) then
      fail("save: '%s' must be a tensor, got %s", tostring(name), options.show(t))
    end
    local id = M.identity(t)
    t = at_home(t)
    if seen[id] then
      table.insert(seen[id].others, name)
    else
      seen[id] = { name, t, stored.type_of(t), others = {} }
      list[#list + 1] = seen[id]
    end
  end
  return list
end

--- Splits a list of { name, tensor } into shards of at most `limit` bytes, greedily and in order. A
--- tensor above the limit becomes a shard of its own, before the shard that is being filled.
---@return table[] shards lists of { name, tensor }
---@return integer total bytes
function M.split_into_shards(list, limit)
  local shards, filling, size, total = {}, {}, 0, 0
  for _, item in ipairs(list) do
    local bytes = item[2]:numel() * item[2]:element_size()
    total = total + bytes
    if bytes > limit then
      shards[#shards + 1] = { item }
    else
      if size + bytes > limit then
        shards[#shards + 1] = filling
        filling, size = {}, 0
      end
      filling[#filling + 1] = item
      size = size + bytes
    end
  end
  if #filling > 0 or #shards == 0 then shards[#shards + 1] = filling end
  return shards, total
end

--- Writes a file of tensors. A safetensors file holds each tensor under one name, as PyTorch's
--- users expect it; PyTorch's format holds all names.
---@param list table[] as without_shared gives it
---@param path string
---@param safe boolean
---@param save userdata? a save that the file is added to; nil: it is written
---@param with fun(weights: table, path: string)? what writes a file of PyTorch's format
---@return string[] names that are in the file
local function write(list, path, safe, save, with)
  local dict, names = ordered.new(), {}
  for _, item in ipairs(list) do
    for i = 0, safe and 0 or #item.others do
      local name = i == 0 and item[1] or item.others[i]
      dict[name], names[#names + 1] = item[2], name
    end
  end
  if safe then core.safetensors_save(path, list, METADATA, save)
  elseif with then with(dict, path)
  else files.write(dict, path, false, nil, save) end
  return names
end

--- Writes a table of tensors to one safetensors file, or any nested value in PyTorch's format.
---@param object table
---@param path string
---@param safe boolean
---@param save userdata? a save that the file is added to; nil: it is written
function M.save(object, path, safe, save)
  if not safe then return files.write(object, path, false, nil, save) end
  if type(object) ~= "table" then
    fail("save: expected a table of tensors by name, got %s", options.show(object))
  end
  write(without_shared(object), path, true, save)
end

--- Removes files of an earlier save that this save has not written.
local function remove_stale(directory, names, written)
  for _, name in ipairs(assert(fs.list(directory))) do
    local ours = name == names.whole or name == names.index or name:match(names.stale)
    if ours and not written[name] then os.remove(fs.join(directory, name)) end
  end
end

-- Hands the weights of a state dict, shard by shard, to put(shard, file), which returns the names
-- that it has written, and the index, if there are several, to put_text(text, file).
local function in_shards(dict, limit, names, put, put_text)
  local shards, total = M.split_into_shards(without_shared(dict), limit)
  local weight_map = {}
  for i, shard in ipairs(shards) do
    local file = #shards == 1 and names.whole or names.shard:format(i, #shards)
    for _, name in ipairs(put(shard, file)) do weight_map[name] = file end
  end
  if #shards == 1 then return end
  put_text(json.encode({ metadata = { total_size = total }, weight_map = weight_map }, 2) .. "\n",
    names.index)
end

-- The names of the files of model number i, from 1: model_1.safetensors is the second one's.
local function names_of(i, safe)
  local names = {}
  for what, name in pairs(NAMES[safe]) do
    names[what] = i == 1 and name or name:gsub("model", ("model_%d"):format(i - 1), 1)
  end
  return names
end

--- Adds the weights of model number `i` to a save: one file, or shards and an index.
---@param dict table<string, accelerate.Tensor>
---@param i integer from 1
---@param save accelerate.checkpoint.Save
---@param opts { max_shard_size: integer|string, safe_serialization: boolean }
function M.add(dict, i, save, opts)
  local safe = opts.safe_serialization
  in_shards(dict, M.bytes_of("max_shard_size", opts.max_shard_size), names_of(i, safe), function(shard, file)
    return write(shard, fs.join(save.draft, file), safe, save.files)
  end, function(text, file) core._parts_write(fs.join(save.draft, file), { text }, "save", save.files) end)
end

--- Returns where the weights of model number `i` are among files with these names: a file or an
--- index; nil where they are not.
---@param i integer from 1
---@param listed table<string, any> by name
---@return string?
function M.listed(i, listed)
  for _, safe in ipairs { true, false } do
    local names = names_of(i, safe)
    if listed[names.whole] then return names.whole end
    if listed[names.index] then return names.index end
  end
end

local receive -- set where models are prepared

--- Sets what brings the values of a model together that are cut over ranks.
---@param fn fun(model: accelerate.nn.Module, dict: table<string, accelerate.Tensor>?):
---  table<string, accelerate.Tensor>? nil: this rank reads all of them
function M.receive_with(fn) receive = fn end

--- Returns whole weights of a model that this rank has a part of: on rank 0 all, elsewhere none.
--- All ranks call it then. Nil where this rank can read all of them.
---@param model accelerate.nn.Module
---@param dict? table<string, accelerate.Tensor> the tensors themselves, default the model's
---@return table<string, accelerate.Tensor>?
function M.received(model, dict) return receive and receive(model, dict) end

--- Writes a model's weights into a directory.
---@param model accelerate.nn.Module
---@param directory string
---@param opts { max_shard_size: integer|string, safe_serialization: boolean, save_function:
---  fun(weights: table, path: string)? }
---@param dict table<string, accelerate.Tensor>? its state dict, where the model's own is not whole
function M.save_model(model, directory, opts, dict)
  local limit, names = M.bytes_of("max_shard_size", opts.max_shard_size), NAMES[opts.safe_serialization]
  if fs.is_file(directory) then
    notice.here("save_model: %s should be a directory, not a file; nothing was saved", directory)
    return
  end
  local state = dict or model:state_dict()
  for name, value in ordered.pairs(state) do
    if not core.is_tensor(value) then
      fail("save_model: '%s' must be a tensor, got %s", tostring(name), options.show(value))
    elseif value.device == "meta" then
      fail("save_model: '%s' is on the meta device, without values to save", name)
    end
  end
  local made, why = fs.make_dirs(directory)
  if not made then fail("save_model: %s", why) end
  local written = {}
  in_shards(state, limit, names, function(shard, file)
    written[file] = true
    return write(shard, fs.join(directory, file), opts.safe_serialization, nil, opts.save_function)
  end, function(text, file)
    written[file] = true
    local ok, problem = fs.write(fs.join(directory, file), text, true)
    if not ok then fail("save_model: %s", tostring(problem)) end
  end)
  remove_stale(directory, names, written)
end

-- ---- loading

local function read_index(path, where)
  local text, why = fs.read(path)
  if not text then fail("%s: %s", where, why) end
  local index, problem = json.decode(text)
  local map = type(index) == "table" and (index.weight_map or index)
  if type(map) ~= "table" then
    fail("%s: %s: %s", where, path, problem or "there is no weight_map in it")
  end
  local folder = path:match("^(.*)/[^/]*$") or "."
  local parts, names, seen = {}, {}, {}
  for name, file in ordered.pairs(map) do
    if not fs.is_plain_name(file) then
      fail("%s: %s: '%s' must name a file beside it, got %s", where, path, tostring(name),
        options.show(file))
    end
    names[#names + 1] = name
    if not seen[file] then
      seen[file] = true
      parts[#parts + 1] = fs.join(folder, file)
    end
  end
  table.sort(parts)
  return parts, names
end

--- Returns the files of a checkpoint, and the names of its tensors if it has an index.
---@param path string a file, an index, or a folder with either
---@param where string? what messages begin with; default "load_checkpoint_in_model"
---@return string[] files
---@return string[]? names
function M.find_files(path, where)
  where = where or "load_checkpoint_in_model"
  if not fs.exists(path) then fail("%s: there is no file or directory %s", where, path) end
  if not fs.is_dir(path) then
    if path:match("%.json$") then return read_index(path, where) end
    return { path }
  end
  local safe, pickled = fs.join(path, NAMES[true].whole), fs.join(path, NAMES[false].whole)
  if fs.exists(safe) then return { safe } end
  local found = {}
  for _, name in ipairs(assert(fs.list(path))) do
    if name:match("%.index%.json$") then found[#found + 1] = name end
  end
  if #found == 1 then return read_index(fs.join(path, found[1]), where) end
  if #found > 1 then
    fail("%s: %s holds several index files (%s); name the one to load", where, path,
      table.concat(found, ", "))
  end
  if fs.exists(pickled) then return { pickled } end
  fail("%s: %s holds neither %s nor an index (*.index.json) nor %s", where, path,
    NAMES[true].whole, NAMES[false].whole)
end

local function check_form(path, format)
  if format and format ~= "pt" then
    fail("load_checkpoint_in_model: %s was written for '%s'; expected the format 'pt'", path, format)
  end
end

local function read_torch(path)
  local dict = files.load(path)
  if type(dict) ~= "table" then
    fail("load_checkpoint_in_model: %s holds %s; expected tensors by name", path, options.show(dict))
  end
  return dict
end

local function read_file(path)
  if files.is_torch(path) then return read_torch(path) end
  local dict, metadata = files.load_safetensors(path)
  check_form(path, metadata.format)
  return dict
end

-- The tensors of PyTorch's file over the mapped file; a function that closes the file and raises
-- where it was truncated; one that only raises. Where `verifies` their checksums are compared, one
-- storage at a time.
local function lend_torch(path, verifies)
  local dict, close, check = files.lend(path, verifies)
  if type(dict) ~= "table" then
    fail("load_checkpoint_in_model: %s holds %s; expected tensors by name", path, options.show(dict))
  end
  return dict, close, check
end

local function is_rank_0() return core.dist.rank() == 0 end

--- Returns where a source's elements are, for tensors that take them from there
--- (accelerate.deferred); nil where they are in memory.
---@param source accelerate.WeightSource
---@return accelerate.deferred.Source?
function M.in_file(source)
  local file, name, t = source.file, source.name, source.tensor
  if file then
    return { path = source.path, lend = function() return file:_lend(name) end,
      check = function() file:_check() end, drop = function() file:_drop(name) end }
  elseif source.check then
    return { path = source.path, lend = function() return t end, check = source.check }
  end
end

-- For tensors that are copied into a model at once: see files.lend. PyTorch's files are read, as
-- their checksums are compared then, but for a model that rests on the files. Of a type that there
-- is not here only those of `wanted` names raise. Returns them, what is called after the copying,
-- and all names.
local function lend_file(path, wanted)
  local dict, taken = ordered.new(), {}
  local function put(name, source)
    dict[name] = source.tensor or source.file:_lend(name)
    taken[#taken + 1] = deferred.lend(dict[name], M.in_file(source))
  end
  if files.is_torch(path) then
    if not deferred.is_wanted() then dict = read_torch(path)
    else
      local tensors, _, check = lend_torch(path, is_rank_0())
      for name, t in ordered.pairs(tensors) do
        put(name, { path = path, name = name, tensor = t, check = check })
      end
    end
    return dict, function() end, ordered.keys(dict)
  end
  local file = core.safetensors_open(path)
  check_form(path, file:metadata().format)
  for _, name in ipairs(file:keys()) do
    if wanted[name] or file:_readable(name) then
        put(name, { path = path, name = name, file = file, is_safetensors = true })
      end
  end
  return dict, function()
    file:_check()
    for _, source in ipairs(taken) do
      if source.taken then return end -- a parameter reads the file later
    end
    file:close()
  end, file:keys()
end

--- Returns all tensors of a checkpoint by name, over the mapped files where that can be, and the
--- types of those whose bytes come as uint8: "int8", "float8_e4m3fn" and the like.
---@param checkpoint string a safetensors or PyTorch file, an index, or a directory with either
---@return table<string, accelerate.Tensor> ordered
---@return table<string, string> types
function M.lend_checkpoint(checkpoint)
  local dict, types = ordered.new(), {}
  for _, path in ipairs((M.find_files(checkpoint))) do
    if files.is_torch(path) then
      for name, t in ordered.pairs(read_torch(path)) do dict[name] = t end
    else
      local file = core.safetensors_open(path)
      check_form(path, file:metadata().format)
      for _, name in ipairs(file:keys()) do
        local t, dtype = file:_lend(name, true), file:get_dtype(name)
        local bytes = dtype:find "^float8_" ~= nil
        dict[name] = bytes and t:view "uint8" or t
        if bytes or not file:_readable(name) then types[name] = dtype end
      end
    end
  end
  return dict, types
end

--- Returns all tensors of a checkpoint by name.
---@param checkpoint string a safetensors or PyTorch file, an index, or a directory with either
---@return table<string, accelerate.Tensor> ordered
function M.read_checkpoint(checkpoint)
  local dict = ordered.new()
  for _, path in ipairs((M.find_files(checkpoint))) do
    for name, t in ordered.pairs(read_file(path)) do
      if dict[name] ~= nil then
        fail("load_checkpoint_in_model: %s: '%s' is in another file of %s, too", path, name, checkpoint)
      end
      dict[name] = t
    end
  end
  return dict
end

---@class accelerate.WeightSource
---@field path string
---@field name string in the file
---@field file userdata? the open file
---@field is_safetensors boolean?
---@field tensor accelerate.Tensor? of another file
---@field is_lent boolean? that is over the mapped file
---@field close fun()? closes the mapped file; raises when it was truncated
---@field check fun()? raises when it was truncated, where tensors rest in it

--- Returns where each tensor of a checkpoint is, in order. None takes memory yet, but for those of
--- PyTorch's files that have to be read whole: of before 1.6.
---@param checkpoint string as read_checkpoint takes it
---@param rests boolean? tensors may rest in their files, also in PyTorch's, whose checksums rank 0
---  alone compares then
---@return table<string, accelerate.WeightSource> ordered
function M.sources(checkpoint, rests)
  local all = ordered.new()
  local function put(name, source)
    if all[name] ~= nil then
      fail("load_checkpoint_in_model: %s: '%s' is in another file of %s, too", source.path, name, checkpoint)
    end
    all[name] = source
  end
  for _, path in ipairs((M.find_files(checkpoint))) do
    if files.is_torch(path) then
      local dict, close, check = lend_torch(path, not rests or is_rank_0())
      local is_lent = fs.head(path, 2) == "PK"
      for name, t in ordered.pairs(dict) do
        put(name, { path = path, name = name, tensor = t, is_lent = is_lent, close = close,
          check = rests and check or nil })
      end
    else
      local file = core.safetensors_open(path)
      check_form(path, file:metadata().format)
      for _, name in ipairs(file:keys()) do
        put(name, { path = path, name = name, file = file, is_safetensors = true })
      end
    end
  end
  return all
end

--- Returns the tensor of a source for a caller that copies it: of a safetensors file over the
--- mapped file, which costs no memory. check_source says afterwards whether the file was whole.
---@param source accelerate.WeightSource
---@return accelerate.Tensor
function M.lend(source) return source.tensor or source.file:_lend(source.name) end

--- Returns a tensor of a source's shape and type. One of a safetensors file has no elements, so
--- that all of a large checkpoint can be looked at without being mapped to be written to.
---@param source accelerate.WeightSource
---@return accelerate.Tensor
function M.describe(source)
  local file = source.file
  if not source.is_safetensors or not file:_readable(source.name) then return M.lend(source) end
  return core.empty(file:get_shape(source.name), { dtype = file:get_dtype(source.name), device = "meta" })
end

--- Closes the files of sources: what rests in them keeps its pages. Raises when one was truncated
--- since it was opened. Compiled code may hold a file for as long as the process runs.
---@param sources table<string, accelerate.WeightSource>
---@param of_layers table<string, table<string, accelerate.WeightSource>>?
---@param keeps boolean? whether values are read from them later, so that they stay open
function M.close_sources(sources, of_layers, keeps)
  local opened, seen = {}, {}
  local function gather(list)
    for _, source in ordered.pairs(list) do
      local key = source.file or source.close
      if key and not seen[key] then seen[key], opened[#opened + 1] = true, source end
    end
  end
  gather(sources)
  for _, list in ordered.pairs(of_layers or {}) do gather(list) end
  for _, source in ipairs(opened) do
    if source.file then source.file:_check()
    elseif not keeps then source.close() end
  end
  for _, source in ipairs(opened) do
    if source.is_safetensors and not keeps then source.file:close() end
  end
end

local LOAD = { strict = { "boolean", default = false } }

--- Returns the names that a checkpoint lacks, and those that the model does not have. A tensor of
--- several names may be under any of them.
local function compare(model, names)
  local known, given, found, missing, unexpected = {}, {}, {}, {}, {}
  local mine = model:state_dict { keep_vars = true }
  for _, name in ipairs(names) do given[name] = true end
  for name, t in ordered.pairs(mine) do
    known[name] = true
    if given[name] then found[t] = true end
  end
  for name, t in ordered.pairs(mine) do
    if not found[t] then missing[#missing + 1] = name end
  end
  for _, name in ipairs(names) do
    if not known[name] then unexpected[#unexpected + 1] = name end
  end
  return missing, unexpected
end

--- Raises, or with `strict = false` says in a notice, what of a checkpoint does not fit a model.
---@param checkpoint string
---@param missing string[] the model's names that it has not
---@param unexpected string[] its names that the model has not
---@param strict boolean
function M.complain(checkpoint, missing, unexpected, strict)
  local faults = {}
  if #missing > 0 then faults[#faults + 1] = "missing keys: " .. table.concat(missing, ", ") end
  if #unexpected > 0 then faults[#faults + 1] = "unexpected keys: " .. table.concat(unexpected, ", ") end
  local wanted = lists.set(missing)
  local prefix = prefixes.surplus(unexpected, function(name) return wanted[name] end)
  if prefix then faults[#faults + 1] = prefixes.remedy(prefix) end
  if #faults == 0 then return end
  local text = ("load_checkpoint_in_model: %s does not fit the model: %s"):format(checkpoint,
    table.concat(faults, "; "))
  if strict then fail("%s", text) end
  notice.main("%s", text)
end

--- Copies weights that save_model (or PyTorch) wrote into a model, whose tensors stay where they
--- are.
---@param model accelerate.nn.Module
---@param checkpoint string a safetensors file, an index, or a directory with either
---@param opts { strict: boolean? }? strict: raise for missing or unknown names, which otherwise
---  give a notice on stderr
function M.load_checkpoint_in_model(model, checkpoint, opts)
  opts = options.check("load_checkpoint_in_model", opts, LOAD)
  if not class.is(model, require("accelerate.nn").Module) then
    fail("load_checkpoint_in_model: model must be a module, got %s", options.show(model))
  end
  options.value("load_checkpoint_in_model", "checkpoint", checkpoint, { "string" })
  local parts, names = M.find_files(checkpoint)
  local own, first, check = model:state_dict { keep_vars = true }, nil, nil
  if not names then first, check, names = lend_file(parts[1], own) end
  local missing, unexpected = compare(model, names)
  M.complain(checkpoint, missing, unexpected, opts.strict)
  for i, file in ipairs(parts) do
    if i > 1 or not first then first, check = lend_file(file, own) end
    model:load_state_dict(first, { strict = false })
    check()
  end
end

return M
