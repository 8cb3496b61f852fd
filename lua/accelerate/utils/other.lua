--- Small helpers: names, nested tables, modules, state dicts.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local function check_model(what, model)
  if not class.is(model, require("accelerate.nn").Module) then
    fail("%s: model must be a module, got %s", what, options.show(model))
  end
  return model
end

local EXTRACT = {
  keep_fp32_wrapper = { "boolean", default = true }, keep_torch_compile = { "boolean", default = true },
  recursive = { "boolean", default = false },
}

--- The model that a prepared one stands for: here the same object, for prepare does not wrap models.
---@param model accelerate.nn.Module
---@param opts { keep_fp32_wrapper: boolean?, keep_torch_compile: boolean?, recursive: boolean? }? keep_fp32_wrapper = false:
---  its forward is again what it was before mixed precision; recursive: its submodules' as well; nothing is compiled here
---@return accelerate.nn.Module
function M.extract_model_from_parallel(model, opts)
  check_model("extract_model_from_parallel", model)
  opts = options.check("extract_model_from_parallel", opts, EXTRACT)
  if not opts.keep_fp32_wrapper then
    local mixed_precision = require "accelerate.precision.mixed_precision"
    mixed_precision.unwrap(model)
    if opts.recursive then
      for _, module in ipairs(model:modules()) do mixed_precision.unwrap(module) end
    end
  end
  return model
end

--- A name for messages: that of a class, of an object's class, where a function is defined, or the value as text.
---@param value any
---@return string
function M.get_pretty_name(value)
  local meta = (type(value) == "table" or type(value) == "userdata") and getmetatable(value)
  local own = type(value) == "table" and rawget(value, "__name")
  local name = type(own) == "string" and own or type(meta) == "table" and rawget(meta, "__name")
  if type(name) == "string" then return name end
  if type(value) == "function" then
    local info = debug.getinfo(value, "S")
    return info.what == "C" and "function" or ("function at %s:%d"):format(info.short_src, info.linedefined)
  end
  return tostring(value)
end

--- Merges `source` into `destination`, tables inside as well, and returns `destination`.
---@param source table
---@param destination table changed
---@return table
function M.merge_dicts(source, destination)
  options.value("merge_dicts", "source", source, { "table" })
  options.value("merge_dicts", "destination", destination, { "table" })
  local function merge(from, to, depth)
    if depth > 200 then fail("merge_dicts: tables are nested more than 200 deep (or one holds itself)") end
    for key, value in ordered.pairs(from) do
      if type(value) == "table" and getmetatable(value) == nil then
        if to[key] == nil then to[key] = {} end
        if type(to[key]) ~= "table" then
          fail("merge_dicts: '%s' is a table in the source, %s in the destination", tostring(key), options.show(to[key]))
        end
        merge(value, to[key], depth + 1)
      else
        to[key] = value
      end
    end
  end
  merge(source, destination, 1)
  return destination
end

--- "1.5 KB": a number of bytes for people, in units of 1024.
---@param size number
---@return string
function M.convert_bytes(size)
  options.value("convert_bytes", "size", size, { "number", min = 0 })
  local function text(value, unit)
    local digits = ("%.2f"):format(value):gsub("0$", "")  -- one digit stays
    if unit == "bytes" and value % 1 == 0 then digits = ("%.0f"):format(value) end
    return digits .. " " .. unit
  end
  for _, unit in ipairs { "bytes", "KB", "MB", "GB", "TB" } do
    if size < 1024 then return text(size, unit) end
    size = size / 1024
  end
  return text(size, "PB")
end

--- `recursive_getattr(model, "encoder.1.weight")`: fields of fields.  Words of digits are tried as positions as well.
---@param object any
---@param path string
---@return any
function M.recursive_getattr(object, path)
  options.value("recursive_getattr", "object", object, { "any" })
  options.value("recursive_getattr", "path", path, { "string" })
  if path == "" then fail("recursive_getattr: path is empty") end
  local value, walked = object, {}
  for name in path:gmatch("[^%.]+") do
    local kind = type(value)
    if kind ~= "table" and kind ~= "userdata" then
      fail("recursive_getattr: %s is %s, which has no fields (looking for '%s' of '%s')",
        #walked == 0 and "the object" or "'" .. table.concat(walked, ".") .. "'", options.show(value), name, path)
    end
    local holder = value
    local ok, found = pcall(function() return holder[name] end)
    if (not ok or found == nil) and tonumber(name) then ok, found = pcall(function() return holder[tonumber(name)] end) end
    if not ok or found == nil then
      fail("recursive_getattr: %s has no '%s'", #walked == 0 and "the object" or "'" .. table.concat(walked, ".") .. "'", name)
    end
    value = found
    walked[#walked + 1] = name
  end
  return value
end

local CHILDREN = { return_fqns = { "boolean", default = false } }

--- A model's modules, those inside before those around them; the model itself is the last.
---@param model accelerate.nn.Module
---@param opts { return_fqns: boolean? }? return_fqns: a list of { name, module }
---@return accelerate.nn.Module[]|table[]
function M.get_module_children_bottom_up(model, opts)
  check_model("get_module_children_bottom_up", model)
  opts = options.check("get_module_children_bottom_up", opts, CHILDREN)
  local stack, top_down = { { "", model } }, {}
  while #stack > 0 do
    local item = table.remove(stack)
    top_down[#top_down + 1] = item
    for name, child in item[2]:named_children() do
      stack[#stack + 1] = { item[1] == "" and name or item[1] .. "." .. name, child }
    end
  end
  local list = {}
  for i = #top_down, 1, -1 do list[#list + 1] = opts.return_fqns and top_down[i] or top_down[i][2] end
  return list
end

--- A state dict as a safetensors file holds it: of several names of one tensor the first stays (the others are named on
--- stderr), and every tensor is contiguous.  Entries that are no tensors stay.
---@param state_dict table<string, any> left alone
---@return table<string, any>
function M.clean_state_dict_for_safetensors(state_dict)
  options.value("clean_state_dict_for_safetensors", "state_dict", state_dict, { "table" })
  local identity = require("accelerate.weights").identity
  local clean, seen, removed = ordered.new(), {}, {}
  for name, value in ordered.pairs(state_dict) do
    if not core.is_tensor(value) then
      clean[name] = value
    else
      local id = identity(value)
      if seen[id] then removed[#removed + 1] = name else clean[name] = value:contiguous() end
      seen[id] = true
    end
  end
  if #removed > 0 then
    io.stderr:write("accelerate: left out, because they share their memory with a tensor of another name: ",
      table.concat(removed, ", "), "\n")
  end
  return clean
end

--- Whether parameters of a model are spread over processes (DTensor): there are none such yet.
---@param model accelerate.nn.Module
---@return boolean
function M.model_has_dtensor(model)
  check_model("model_has_dtensor", model)
  return false
end

--- Whether a model is one of the peft library's: that is Python's, so none is.
---@param model accelerate.nn.Module
---@return boolean
function M.is_peft_model(model)
  check_model("is_peft_model", model)
  return false
end

--- Runs fn(...) with whole parameters in reach.  They always are here: nothing is partitioned before ZeRO-3 is there.
---@param params accelerate.Tensor|accelerate.Tensor[]
---@param opts { modifier_rank: integer?, fwd_module: table?, enabled: boolean? }?
---@param fn function
---@return any ... what fn returns
function M.GatheredParameters(params, opts, fn, ...)
  if type(opts) == "function" then return M.GatheredParameters(params, nil, opts, fn, ...) end
  options.value("GatheredParameters", "params", params, { "tensor|list" })
  options.check("GatheredParameters", opts, {
    modifier_rank = { "integer", optional = true, min = 0 }, fwd_module = { "any", optional = true },
    enabled = { "boolean", default = true },
  })
  options.value("GatheredParameters", "fn", fn, { "function" })
  return fn(...)
end

--- Installs torch_xla upstream: raises, for there are no TPUs here.
function M.install_xla() fail("install_xla: torch_xla is a library for PyTorch on TPUs; it cannot be used from here") end

--- Pipeline inference upstream: raises.
function M.prepare_pippy()
  fail("prepare_pippy: pipeline parallelism is not there yet; run the model on each process, or split the inputs with " ..
    "split_between_processes")
end

return M
