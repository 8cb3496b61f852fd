--- GPUs and their memory, under PyTorch's names: `accelerate.cuda` and `tensor.cuda`.
---
--- Sizes are in bytes. A device is a number or a name ("cuda:1"); the default is this process's
--- GPU. `allocated` memory is in tensors; `reserved` memory is what the allocator has taken from
--- the driver, for present and later tensors.
local core = require "accelerate.core"
local driver = require "accelerate.machine.driver"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local sizes = require "accelerate.utils.sizes"

local M = {}

local function device_of(where, device)
  if device == nil then
    local state = package.loaded["accelerate.state"]
    local own = state and state.initialized() and state.PartialState().device
    return own and own:find("^cuda") and own or "cuda:0"
  end
  if type(device) == "number" and device >= 0 and device % 1 == 0 then return "cuda:" .. device end
  if device == "cuda" then return "cuda:0" end
  if type(device) == "string" and device:find("^cuda:%d+$") then return device end
  options.fail("%s: expected the number of a GPU or a name such as \"cuda:0\", got %s", where,
    options.show(device))
end

--- Returns whether this process can use a GPU.
---@return boolean
---@return string? reason why not
function M.is_available()
  local n, reason = core.device_count("cuda")
  return n > 0, reason
end

--- Returns the number of GPUs that this process can use.
---@return integer
---@return string? reason for none
function M.device_count() return core.device_count("cuda") end

local function expect_gpu(where)
  local count, reason = core.device_count("cuda")
  if count == 0 then options.fail("cuda.%s: there is no GPU: %s", where, tostring(reason)) end
end

--- Returns the number of this process's GPU, from 0. Raises where there is none.
---@return integer
function M.current_device()
  expect_gpu("current_device")
  return tonumber(device_of("current_device"):match "%d+$")
end

-- What the driver says of a GPU, or an error.
local function known(where, device, ask)
  expect_gpu(where)
  local name = device_of(where, device)
  local value, more = ask(name)
  if value == nil then
    options.fail("cuda.%s: the driver does not say it of %s; nvidia-smi may be missing", where, name)
  end
  return value, more
end

--- Returns the name of a GPU, as its driver has it: "NVIDIA H100 80GB HBM3".
---@param device (integer|string)? default: this process's
---@return string
function M.get_device_name(device)
  return (known("get_device_name", device, driver.name_of))
end

--- Returns the compute capability of a GPU, 9 and 0 of "9.0". nvidia-smi, which comes with
--- the driver, says it.
---@param device (integer|string)? default: this process's
---@return integer major
---@return integer minor
function M.get_device_capability(device)
  return known("get_device_capability", device, driver.capability_of)
end

--- Returns what is known of a GPU: name, major and minor (its compute capability), and total_memory
--- in bytes. Another name raises.
---@param device (integer|string)? default: this process's
---@return { name: string, major: integer, minor: integer, total_memory: integer }
function M.get_device_properties(device)
  local where = "get_device_properties"
  local major, minor = known(where, device, driver.capability_of)
  return properties.strict("the properties of a GPU", { name = (known(where, device, driver.name_of)),
    major = major, minor = minor, total_memory = core.memory_stats(device_of(where, device)).limit_bytes })
end

--- Returns whether this process can use a GPU: all that it can use compute with bfloat16.
---@return boolean
function M.is_bf16_supported() return (M.is_available()) end

--- Seeds the draws, as tensor.manual_seed: those on GPUs and those on the CPU have one generator.
---@param seed integer
function M.manual_seed(seed)
  options.value("cuda.manual_seed", "seed", seed, { "integer" })
  core.manual_seed(seed)
end

--- Another name of manual_seed: a process draws for all its GPUs with one generator.
---@param seed integer
function M.manual_seed_all(seed)
  options.value("cuda.manual_seed_all", "seed", seed, { "integer" })
  core.manual_seed(seed)
end

--- Waits until a GPU has done all work queued on it.
---@param device (integer|string)? default: this process's
function M.synchronize(device) core.synchronize(device_of("synchronize", device)) end

--- Returns all counters of core.memory_stats: live_bytes, peak_bytes,
--- reserved_bytes, peak_reserved_bytes, cached_bytes, limit_bytes (of the device), available_bytes
--- (free on the device, for all processes), live_blocks, segments (taken from the driver),
--- allocations, cache_hits, retries (requests that had to make room first), failures (out of
--- memory), waits (of the host for the device) and uploads.
---@param device (integer|string)? default: this process's
---@return table
function M.memory_stats(device) return core.memory_stats(device_of("memory_stats", device)) end

--- Returns the bytes in tensors, and in scratch memory of running kernels.
---@param device (integer|string)? default: this process's
---@return integer
function M.memory_allocated(device)
  return core.memory_stats(device_of("memory_allocated", device)).live_bytes
end

--- Returns the largest memory_allocated since the start, or since reset_peak_memory_stats.
---@param device (integer|string)? default: this process's
---@return integer
function M.max_memory_allocated(device)
  return core.memory_stats(device_of("max_memory_allocated", device)).peak_bytes
end

--- Returns the bytes taken from the driver.
---@param device (integer|string)? default: this process's
---@return integer
function M.memory_reserved(device)
  return core.memory_stats(device_of("memory_reserved", device)).reserved_bytes
end

--- Returns the largest memory_reserved since the start, or since reset_peak_memory_stats.
---@param device (integer|string)? default: this process's
---@return integer
function M.max_memory_reserved(device)
  return core.memory_stats(device_of("max_memory_reserved", device)).peak_reserved_bytes
end

--- Restarts max_memory_allocated and max_memory_reserved.
---@param device (integer|string)? default: this process's
function M.reset_peak_memory_stats(device)
  core.reset_peak_memory_stats(device_of("reset_peak_memory_stats", device))
end

--- Returns the free memory of a GPU, for all processes, and its size, as the driver reports them.
---@param device (integer|string)? default: this process's
---@return integer free
---@return integer total
function M.mem_get_info(device)
  local s = core.memory_stats(device_of("mem_get_info", device))
  return s.available_bytes, s.limit_bytes
end

--- Gives memory that no tensor uses back to the driver: of the GPUs that this process has used,
--- pinned memory of the host included. Waits for them. A GPU that was never used is not touched.
function M.empty_cache()
  if not core._loaded("cuda") then return end
  for k = 0, (core.device_count("cuda")) - 1 do core.empty_cache("cuda:" .. k) end
end

local SMALL = { "1 KiB", "8 KiB", "64 KiB", "256 KiB", "1 MiB" }

--- Returns a report on a GPU's memory as text: allocated and reserved bytes, and live memory by
--- size and script line.
---@param device (integer|string)? default: this process's
---@return string
function M.memory_summary(device)
  device = device_of("memory_summary", device)
  local s, out = core.memory_stats(device), {}
  local function add(fmt, ...) out[#out + 1] = fmt:format(...) end
  add("%s, memory of this process", device)
  add("  allocated %12s, at most %12s, in %d blocks", sizes.text(s.live_bytes), sizes.text(s.peak_bytes),
    s.live_blocks)
  add("  reserved  %12s, at most %12s, in %d segments", sizes.text(s.reserved_bytes),
    sizes.text(s.peak_reserved_bytes), s.segments)
  add("  free on the device %s of %s", sizes.text(s.available_bytes), sizes.text(s.limit_bytes))
  add("  requests %d, %d of them out of what was cached, %d made room first, %d failed", s.allocations,
    s.cache_hits, s.retries, s.failures)
  local groups, small = core._memory_groups(device, 32)
  if groups[1] then add("  live, largest first:") end
  for _, g in ipairs(groups) do add("    %d x %s at %s", g.live, sizes.text(g.bytes), g.where) end
  local parts = {}
  for k, class in ipairs(small) do
    if class.blocks > 0 then
      parts[#parts + 1] = ("%d up to %s (%s)"):format(class.blocks, SMALL[k], sizes.text(class.bytes))
    end
  end
  if parts[1] then add("  smaller ones: %s", table.concat(parts, ", ")) end
  return table.concat(out, "\n")
end

return properties.strict("accelerate.cuda", M)
