--- The machine: ports, GPUs (queried from the driver, without touching a device), and a basic
--- configuration file.
local core = require "accelerate.core"
local driver = require "accelerate.machine.driver"
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- ---- ports

--- Returns whether a process on this machine listens on a TCP port.
---@param port integer? default 29500
---@return boolean
function M.is_port_in_use(port)
  port = options.value("is_port_in_use", "port", port, { "integer", default = 29500, min = 1, max = 65535 })
  return core._port_in_use(port)
end

--- Returns a TCP port of this machine that nothing uses now.
---@return integer
function M.get_free_port() return core._free_port() end

-- ---- GPUs

--- Returns names and number of the machine's NVIDIA GPUs, without starting CUDA.
---@return string[] names
---@return integer count 0 where there is none
function M.get_gpu_info()
  local names = driver.names()
  if #names == 0 then names = driver.ask("name") end
  return names, #names
end

--- Returns the GPU driver's version, or nil if there is none.
---@return string?
function M.get_driver_version()
  local text = fs.read("/proc/driver/nvidia/version")
  return text and text:match("Kernel Module%s+([%d%.]+)") or driver.ask("driver_version")[1]
end

--- Returns false if several GPUs cannot communicate directly: RTX 40 cards under drivers before
--- 550.40.07.
---@return boolean
function M.check_cuda_p2p_ib_support()
  local names, count = M.get_gpu_info()
  if count < 2 then return true end
  for _, name in ipairs(names) do
    if name:find("RTX 40", 1, true) then
      local version = M.get_driver_version()
      return version ~= nil and require("accelerate.utils.available").compare_versions(version, ">=",
        "550.40.07")
    end
  end
  return true
end

--- Returns whether the first GPU computes in FP8 (compute capability 8.9 or more); false without a
--- GPU.
---@return boolean
function M.check_cuda_fp8_capability()
  local major, minor = (driver.ask("compute_cap")[1] or ""):match("^(%d+)%.(%d+)")
  return major ~= nil and tonumber(major) * 10 + tonumber(minor) >= 89
end

--- Returns what this process would train on, without starting it: "cuda" and "MULTI_GPU", or "cpu"
--- and "MULTI_CPU".
---@return string device
---@return string distributed_type of a run with several processes
function M.get_current_device_type()
  if core.device_count("cuda") > 0 then return "cuda", "MULTI_GPU" end
  return "cpu", "MULTI_CPU"
end

-- ---- a basic configuration

--- Returns the path at which Accelerate looks for its configuration: $HF_HOME/accelerate, else
--- $XDG_CACHE_HOME/huggingface/accelerate, else ~/.cache/huggingface/accelerate; in it
--- default_config.yaml. Returns nil when the user has no home folder.
---@return string?
function M.default_config_file()
  local base = require("accelerate.host").hf_home()
  return base and fs.join(fs.join(base, "accelerate"), "default_config.yaml")
end

--- Writes a configuration for this machine: its GPUs, or one process on the CPU. Does not change an
--- existing file.
---@param mixed_precision ("no"|"fp16"|"bf16"|"fp8")? default "no"
---@param save_location string? default: where Accelerate looks for it (default_config_file)
---@return string|false path false, and a message, where the file exists already
function M.write_basic_config(mixed_precision, save_location)
  mixed_precision = options.value("write_basic_config", "mixed_precision", mixed_precision,
    { "string", default = "no" }):lower()
  options.value("write_basic_config", "mixed_precision", mixed_precision,
    { "string", one_of = { "no", "fp16", "bf16", "fp8" } })
  local path = options.value("write_basic_config", "save_location", save_location,
    { "string", optional = true })
  path = path or M.default_config_file()
  if path == "" then fail("write_basic_config: save_location is empty; expected a file's path") end
  if not path then fail("write_basic_config: you have no home folder; give save_location") end
  if fs.exists(path) then
    print(("There is a configuration at %s already; it is left as it is. Give another save_location, or " ..
      "remove it first.")
      :format(path))
    return false
  end
  local made, why = fs.make_dirs(path:match("^(.*)/[^/]*$") or ".")
  if not made then fail("write_basic_config: %s", why) end
  local _, gpus = M.get_gpu_info()
  local lines = {
    "compute_environment: LOCAL_MACHINE",
    "debug: false",
    -- in quotes: YAML reads a bare NO as false
    ("distributed_type: %s"):format(gpus > 1 and "MULTI_GPU" or "'NO'"),
    "downcast_bf16: false",
    "enable_cpu_affinity: false",
    "machine_rank: 0",
    "main_training_function: main",
    ("mixed_precision: '%s'"):format(mixed_precision),
    "num_machines: 1",
    ("num_processes: %d"):format(math.max(gpus, 1)),
    "rdzv_backend: static",
    "same_network: false",
    "tpu_use_cluster: false",
    "tpu_use_sudo: false",
    ("use_cpu: %s"):format(tostring(gpus == 0)),
  }
  local ok, problem = fs.write(path, table.concat(lines, "\n") .. "\n")
  if not ok then fail("write_basic_config: %s", tostring(problem)) end
  return path
end

return M
