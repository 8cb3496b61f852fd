--- Running out of memory: telling it from other errors, trying again with less, and letting go of
--- what is cached.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

local CLEAR = { garbage_collection = { "boolean", default = false } }

--- Frees the allocators' cached blocks. The CPU's go back to the system, those of used GPUs to
--- their driver.
---@param opts { garbage_collection: boolean? }|boolean|nil garbage_collection: collect Lua's
---  garbage first, so that tensors that nothing refers to any more are among them. Compiled code,
---  which holds the models that it was compiled for, goes too, and is compiled again; default false
function M.clear_device_cache(opts)
  if type(opts) == "boolean" then opts = { garbage_collection = opts } end
  opts = options.check("clear_device_cache", opts, CLEAR)
  if opts.garbage_collection then
    core._flush_traces()
    collectgarbage()
    collectgarbage() -- finalisers of the first round may have let go of more
  end
  core.empty_cache()
  if core._loaded("cuda") then require("accelerate.cuda").empty_cache() end
end

--- Returns a nil for each argument: `model, optimizer = utils.release_memory(model, optimizer)`
--- sets both to nil. Objects that the script still refers to under another name stay.
---@param ... any
---@return nil ... one for each argument
function M.release_memory(...)
  local n = select("#", ...)
  M.clear_device_cache { garbage_collection = true }
  return unpack({}, 1, n)
end

-- What other libraries say when memory is short, in their own words: PyTorch's allocators, cuDNN,
-- cuBLAS, Habana's devices.
local TEXTS = {
  "CUDA out of memory.", "HIP out of memory.", "XPU out of memory.", "MPS backend out of memory",
  "CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_ALLOC_FAILED",
  "CUBLAS_STATUS_ALLOC_FAILED",
  "DefaultCPUAllocator: can't allocate memory", "PT_DEVMEM Allocation failed",
}

--- Returns whether an error, as pcall gives it, means that memory ran out: that of tensors on
--- any device, of Lua itself, or in the words of PyTorch, cuDNN and cuBLAS. A script's own text
--- about memory is not.
---@param err any
---@return boolean
function M.should_reduce_batch_size(err)
  if type(err) ~= "string" then return false end
  local message = err:match("^(.-)\nstack traceback:") or err
  if message == "not enough memory" or core._out_of_memory(message) then return true end
  for _, text in ipairs(TEXTS) do
    if message:find(text, 1, true) then return true end
  end
  return false
end

--- Returns how many arguments a function names, or nil where that is not known or it takes any
--- number.
local function parameters(fn)
  if type(fn) ~= "function" then return nil end
  local info = debug.getinfo(fn, "u")
  if info.isvararg or not info.nparams or debug.getinfo(fn, "S").what == "C" then return nil end
  return info.nparams
end

local FIND = {
  starting_batch_size = { "integer", default = 128, min = 1 },
  reduce_batch_size_fn = { "function", optional = true },
}

--- Returns a function that calls `fn(batch_size, ...)`. While that runs out of memory, it calls fn
--- again with 0.9 times the size, rounded down. Later calls start with the size that was found.
--- Raises when the size reaches 0. Other errors pass.
---
---   local train = utils.find_executable_batch_size({ starting_batch_size = 256 },
---     function(batch_size, model) ... end)
---   train(model)
---
--- With options alone it returns a function that takes `fn`.
---
--- On several ranks only the rank that ran out of memory starts again. Reduce a shared size if the
--- others must follow.
---@param opts { starting_batch_size: integer?, reduce_batch_size_fn: function? }? may be left out.
---  starting_batch_size: default 128; reduce_batch_size_fn: takes a size and returns the next one,
---  which must be smaller
---@param fn function its first argument is the batch size; callers of the result do not pass that
---  one
---@return function
function M.find_executable_batch_size(opts, fn)
  if scope.callable(opts) and fn ~= nil then
    fail("find_executable_batch_size: options come before the function: write " ..
      "find_executable_batch_size({ starting_batch_size = %s }, fn)",
      type(fn) == "table" and tostring(fn.starting_batch_size or "n") or "n")
  end
  if fn == nil and not options.is_options(opts, FIND) then opts, fn = nil, opts end
  local alone = fn == nil and opts ~= nil
  opts = options.check("find_executable_batch_size", opts, FIND)
  if alone then return function(inner) return M.find_executable_batch_size(opts, inner) end end
  options.value("find_executable_batch_size", "fn", fn, { "function" })
  local size, named = opts.starting_batch_size, parameters(fn)
  if named == 0 then
    fail("find_executable_batch_size: fn must take the batch size as its first argument, it takes none")
  end

  local function smaller()
    if not opts.reduce_batch_size_fn then return math.floor(size * 0.9) end
    local wanted = opts.reduce_batch_size_fn(size)
    options.value("find_executable_batch_size", "what reduce_batch_size_fn returns", wanted,
      { "integer", min = 0 })
    if wanted >= size then
      fail("find_executable_batch_size: reduce_batch_size_fn must give a smaller size than %d, got %d", size,
        wanted)
    end
    return wanted
  end

  local attempt
  local function settle(arguments, ok, ...)
    if ok then return ... end
    local err = (...)
    if not M.should_reduce_batch_size(err) then error(err, 0) end
    M.clear_device_cache { garbage_collection = true }
    size = smaller()
    if size == 0 then
      fail("find_executable_batch_size: no batch size fits, also 1 ran out of memory: %s",
        (tostring(err):match("^[^\n]*")))
    end
    return attempt(arguments)
  end
  function attempt(arguments)
    return settle(arguments, xpcall(fn, scope.traced, size, unpack(arguments, 1, arguments.n)))
  end

  return function(...)
    local n = select("#", ...)
    if named and named < n + 1 then
      fail("find_executable_batch_size: called with %d argument%s, but the function takes %d after the " ..
        "batch size; the batch " ..
        "size is passed by find_executable_batch_size itself", n, n == 1 and "" or "s", named - 1)
    end
    M.clear_device_cache { garbage_collection = true }
    return attempt { n = n, ... }
  end
end

return M
