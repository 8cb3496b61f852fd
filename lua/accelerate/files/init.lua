--- Values in files: nested tables with tensors, as safetensors or as PyTorch has them.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

-- Endings of the names that people give to what torch.save writes.
local TORCH = { pt = true, pth = true, bin = true, pkl = true, ckpt = true }

--- Writes a nested value, on this process. Without `safe` the ending of the path decides.
---@param value any
---@param path string
---@param safe boolean? true: safetensors; false: PyTorch's format
---@param where string? what messages begin with; default "save"
---@param save userdata? a save (core._save_new) that the file is added to; nil: it is written
function M.write(value, path, safe, where, save)
  options.value(where or "save", "path", path, { "string" })
  if safe == nil then safe = not TORCH[path:match("%.(%w+)$") or ""] end
  require(safe and "accelerate.files.structure" or "accelerate.files.torch").save(value, path,
    where or "save", save)
end

local SAVE = { safe_serialization = { "boolean", optional = true },
  save_on_each_node = { "boolean", default = false } }

--- Writes any nesting of tensors, numbers, strings (of any bytes), booleans and plain tables to a
--- file; `load` returns it as it was. A table or tensor that occurs twice is one afterwards, and
--- tables may hold themselves. Tensors that show common memory do so afterwards, too; others come
--- back contiguous, and what an op computed comes back without its history. The file appears whole
--- or not at all. Only the main process writes.
---
--- Paths that end in .pt, .pth, .bin, .pkl or .ckpt are written in PyTorch's format, which
--- `torch.load(path, weights_only=True)` reads; all others as safetensors, whose metadata holds the
--- structure as JSON, so that Python opens the tensors by names such as
--- "optimizer.state.0.exp_avg". Raises for functions, objects and nil, naming where they are.
---@param obj any
---@param f string
---@param opts { safe_serialization: boolean?, save_on_each_node: boolean? }? safe_serialization:
---  true for safetensors, false for PyTorch's format, whatever the ending; save_on_each_node: the
---  main process of every machine writes
function M.save(obj, f, opts)
  opts = options.check("save", opts, SAVE)
  options.value("save", "f", f, { "string" })
  local state = require("accelerate.state").PartialState()
  local writes = state.is_main_process
  if opts.save_on_each_node then writes = state.is_local_main_process end
  if writes then M.write(obj, f, opts.safe_serialization) end
end

local LOAD = { map_location = { "string", default = "cpu" },
  weights_only = { "boolean", default = true, one_of = { true } }, strict = { "boolean", default = true } }

local function first_bytes(path)
  options.value("load", "f", path, { "string" })
  local bytes, why = fs.head(path, 32)
  if not bytes then fail("load: %s", why) end
  return bytes
end

-- A pickle begins with 128 and its protocol, as does the header of a safetensors file when its size
-- is 128 more than a multiple of 256.
local function is_pickle(bytes)
  return bytes:byte() == 128 and (bytes:byte(2) or 9) <= 5 and bytes:sub(5, 9) ~= "\0\0\0\0{"
end

-- Whether torch.save wrote a file: a zip archive, or a plain pickle, as before PyTorch 1.6.
function M.is_torch(path)
  local bytes = first_bytes(path)
  return bytes:sub(1, 2) == "PK" or is_pickle(bytes)
end

-- Tensors of a type that there is not here raise, or are noted in `left`.
local function tensors_by_name(file, names, get, device, left)
  local tensors = ordered.new()
  for i, name in ipairs(names) do
    options.value("load_safetensors", ("keys[%d]"):format(i), name, { "string" })
    if left and not file:_readable(name) then
      left[#left + 1] = ("%s: a tensor of %s"):format(name, file:get_dtype(name))
    else
      local t = get(file, name)
      tensors[name] = device and t:to(device) or t
    end
  end
  return tensors
end

-- Returns the value, and the file or archive that is open.
local function read(path, device, lent, left)
  local bytes = first_bytes(path)
  if bytes:sub(1, 2) == "PK" then return require("accelerate.files.torch").load(path, device, lent, left) end
  if is_pickle(bytes) then
    local legacy = require "accelerate.files.torch_legacy"
    if legacy.begins(bytes) then return legacy.load(path, device, left) end
    fail("load: '%s': a pickle that torch.save did not write; save its tensors with torch.save", path)
  end
  local file = core.safetensors_open(path)
  local value = require("accelerate.files.structure").load(file, path, device, lent)
  if value == nil then
    value = tensors_by_name(file, file:keys(), lent and file._lend or file.get_tensor, device, left)
  end
  return value, file
end

-- Errors that do not name the file, as that memory is used up, get its name.
local function read_named(path, ...)
  local ok, value, file = pcall(read, path, ...)
  if ok then return value, file end
  if type(value) ~= "string" or value:find(path, 1, true) then error(value, 0) end
  fail("load: '%s': %s", path, (value:gsub("^[^:\n]*:%d+: ", "")))
end

--- Returns the value of a file that `save` or torch.save wrote; of another safetensors file, its
--- tensors by name. Reads data only: what a file says is never run. Of Python's values, tuples,
--- sets, deques and torch.Size become lists, a Counter a table of counts, dtypes, devices and
--- layouts strings, a complex number { re, im }; of NumPy's, scalars become numbers and arrays
--- tensors; None is left out of dicts and is false in lists. Raises
--- for a damaged file, and for other objects of Python's, tensors of other types and integers that
--- are not exact here: the message names where they are.
---@param f string
---@param ... any map_location = "cpu" (where tensors go), or a table with it; by name too: strict =
---  false leaves out what has no form here and loads the rest; weights_only can be true only:
---  nothing else is read
---@return any value
---@return string[]? left_out with strict = false: the place and the type of each value that was not
---  read
function M.load(f, ...)
  options.value("load", "f", f, { "string" })
  local opts = options.read("load", { "map_location" }, LOAD, ...)
  if opts.map_location ~= "cpu" then
    local fine, err = pcall(core.empty, 0, { device = opts.map_location })
    if not fine then fail("load: option 'map_location': %s", (tostring(err):gsub("^%S-:%d+: ", ""))) end
  end
  local left = not opts.strict and {} or nil
  local value, file = read_named(f, opts.map_location ~= "cpu" and opts.map_location or nil, nil, left)
  file:close()
  return value, left
end

--- Returns the value of a file for a caller that copies its tensors elsewhere at once: they are
--- over the mapped file, so they cost no memory and one copy less, and what is written into them
--- stays in this process. Checksums inside the file are not compared, unless `verifies`.
---@param path string
---@param verifies boolean? reads each storage of PyTorch's file once, and compares its checksum
---@return any value
---@return fun() check raises when the file was truncated meanwhile, so that what was copied is not
---  true; closes it
---@return fun() check likewise; the file stays open
function M.lend(path, verifies)
  local value, file = read_named(path, nil, verifies and "verified" or "lent")
  local function check() file:_check() end
  return value, function()
    check()
    file:close()
  end, check
end

---@class accelerate.SafetensorsFile
---@field keys fun(self): string[] the tensors' names, in the file's order
---@field get_tensor fun(self, name: string): accelerate.Tensor a copy on the CPU
---@field get_shape fun(self, name: string): integer[]
---@field get_dtype fun(self, name: string): string
---@field metadata fun(self): table<string, string>
---@field close fun(self)

--- Returns an open safetensors file, whose tensors are read one at a time: `f:keys()` lists their
--- names, `f:get_tensor(name)` reads one, `f:get_shape(name)` and `f:get_dtype(name)` read none,
--- `f:metadata()` is its table of strings; `f:close()` ends it, as does the collector.
---@param path string
---@return accelerate.SafetensorsFile
function M.safe_open(path)
  options.value("safe_open", "path", path, { "string" })
  return core.safetensors_open(path)
end

local SAFETENSORS = { keys = { "list", optional = true }, device = { "string", default = "cpu" },
  strict = { "boolean", default = true } }

--- Returns the tensors of a safetensors file by name, in the file's order, and its metadata. Raises
--- for a tensor of a type that there is not here; it does not matter to `keys` that leave it out.
---@param path string
---@param opts { keys: string[]?, device: string?, strict: boolean? }? keys: only these are read;
---  device: default "cpu"; strict: default true; false leaves out tensors of other types
---@return table<string, accelerate.Tensor> tensors
---@return table<string, string> metadata
---@return string[]? left_out with strict = false: the names and types of the entries that were not
---  read
function M.load_safetensors(path, opts)
  options.value("load_safetensors", "path", path, { "string" })
  opts = options.check("load_safetensors", opts, SAFETENSORS)
  local file, left = core.safetensors_open(path), not opts.strict and {} or nil
  local device = opts.device ~= "cpu" and opts.device or nil
  local tensors = tensors_by_name(file, opts.keys or file:keys(), file.get_tensor, device, left)
  local metadata = file:metadata()
  file:close()
  return tensors, metadata, left
end

positions.functions(M, { save = "obj f [save_on_each_node] [safe_serialization]", load = "f ..." })

return M
