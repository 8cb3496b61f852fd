-- What our sides of the benchmarks share: a wall clock, medians, the images, and the line of JSON
-- at the end.
local ffi = require "ffi"
local core = require "accelerate.core"

ffi.cdef [[
  typedef struct { long seconds, nanoseconds; } bench_time;
  int clock_gettime(int clock, bench_time *out);
]]

local common = {}
local stamp = ffi.new("bench_time")

--- Seconds on the monotonic clock.
function common.now()
  ffi.C.clock_gettime(1, stamp)
  return tonumber(stamp.seconds) + tonumber(stamp.nanoseconds) * 1e-9
end

--- The seconds that fn(...) takes.
function common.seconds(fn, ...)
  local began = common.now()
  fn(...)
  return common.now() - began
end

function common.median(values)
  local sorted = { unpack(values) }
  table.sort(sorted)
  local n = #sorted
  return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

--- Calls each function once more than `repeats` times; returns the medians in ms, without the first
--- call, as "<name>_ms". Results are freed when a call ends, as Python frees them.
function common.median_of_each(work, repeats)
  local scope, result = require("accelerate.tensor").scope, {}
  for name, fn in pairs(work) do
    local times = {}
    local function call() fn() end -- what a scope returns would outlive it
    scope(call)
    for i = 1, repeats do
      local began = common.now()
      scope(call)
      times[i] = common.now() - began
    end
    result[name .. "_ms"] = common.median(times) * 1e3
  end
  return result
end

--- The training images as float32 [60000, 784] in 0 to 1, and the labels as int64 [60000].  For a
--- GPU without the files: noise of that shape, which takes as long.
function common.fashion_mnist(data, flags)
  local found, dataset = pcall(data.FashionMNIST, { split = "train" })
  if not found and flags and flags.device == "cuda" then
    local tensor = require "accelerate.tensor"
    return tensor.rand(60000, 784), tensor.randint(0, 10, { 60000 })
  end
  if not found then error(dataset, 0) end
  local next_batch, state, control = data.DataLoader(dataset, { batch_size = dataset:len() }):iter()
  local x, y = next_batch(state, control)
  return x:reshape(dataset:len(), 784), y
end

local SWITCHES = { capture = true, tf32 = true, ["conv-tf32"] = true, nondeterministic = true, serve = true,
  fused = true, traffic = true, sharded = true, zero1 = true }
local VALUES = { device = true, dtype = true, batch = true, steps = true, warmup = true, mb = true,
  side = true, width = true, launches = true }
local PRECISIONS = { fp32 = "no", bf16 = "bf16", fp16 = "fp16", fp8 = "fp8" }

--- Takes the flags out of a list of arguments; what stays in it are the positions.
---   --device cpu|cuda    where to train (default cpu)
---   --dtype fp32|bf16|fp16|fp8
---   --batch N --steps N --warmup N
---   --capture            steps are recorded once and replayed (accelerate.utils.capture)
---   --tf32               float32 products and convolutions on the GPU's matrix units, rounded to
---                        ten bits
---   --conv-tf32          likewise for convolutions alone, which is PyTorch's default
---   --nondeterministic   tensor.use_deterministic_algorithms(false), which is PyTorch's default
---   --sharded            values, gradients and optimizer states are cut over the ranks
---                        (FULL_SHARD)
---   --zero1              optimizer states alone are cut over the ranks (ZeRO-1)
---   --serve              measures once for each line that is read, until one says `stop`
---   --traffic            prints the bytes that the kernels of one step move, on a device that
---                        counts them (make traffic), and measures no time
---@return table flags { device, mixed_precision, batch?, steps?, warmup?, capture, tf32, serve,
---  traffic, fused, ... }
function common.flags(arguments)
  local flags, rest = { device = "cpu", dtype = "fp32" }, {}
  local i = 1
  while i <= #arguments do
    local name = arguments[i]:match("^%-%-(.*)")
    if not name then rest[#rest + 1] = arguments[i]
    elseif SWITCHES[name] then flags[name] = true
    elseif VALUES[name] then
      i = i + 1
      local value = arguments[i] or error(("--%s needs a value"):format(name), 0)
      flags[name] = (name == "device" or name == "dtype") and value
        or tonumber(value) or error(("--%s: expected a number, got %s"):format(name, value), 0)
    else error(("unknown flag --%s"):format(name), 0) end
    i = i + 1
  end
  for k = math.max(#rest, #arguments), 1, -1 do arguments[k] = rest[k] end
  flags.mixed_precision = PRECISIONS[flags.dtype]
    or error(("--dtype: expected fp32, bf16, fp16 or fp8, got %s"):format(flags.dtype), 0)
  if flags.device ~= "cpu" and flags.device ~= "cuda" then
    error(("--device: expected cpu or cuda, got %s"):format(flags.device), 0)
  end
  return flags
end

--- The sizes of a preset: one of `presets` by name, or numbers, "2x64x2x32x96".
function common.sizes(presets, name)
  if presets[name] then return unpack(presets[name]) end
  local sizes, _, other = {}, next(presets)
  for n in name:gmatch("%f[%d]%d+%f[%D]") do sizes[#sizes + 1] = tonumber(n) end
  if #sizes == #other and table.concat(sizes, "x") == name then return unpack(sizes) end
  local names = {}
  for each in pairs(presets) do names[#names + 1] = each end
  table.sort(names)
  error(("the presets are %s, or %d sizes with x between them; got %s"):format(table.concat(names, ", "),
    #other, name), 0)
end

--- An Accelerator on the device that the flags ask for.
function common.accelerator(flags)
  local accelerate = require "accelerate"
  if flags.device == "cuda" then
    local count, reason = core.device_count("cuda")
    if count == 0 then error(reason, 0) end
  end
  local tensor = require "accelerate.tensor"
  if flags.tf32 then tensor.set_float32_matmul_precision("high") end
  if flags["conv-tf32"] then tensor.backends.cudnn.allow_tf32 = true end
  if flags.nondeterministic then tensor.use_deterministic_algorithms(false) end
  local plugin = flags.sharded and accelerate.FullyShardedDataParallelPlugin { fsdp_version = 2,
    auto_wrap_policy = "transformer_based_wrap", transformer_cls_names_to_wrap = { "Block" } } or nil
  -- (a prepared loader would say the batch size, and there is none)
  local zero = flags.zero1 and accelerate.DeepSpeedPlugin { hf_ds_config = {
    train_micro_batch_size_per_gpu = flags.batch or 1, zero_optimization = { stage = 1 } } } or nil
  return accelerate.Accelerator { cpu = flags.device == "cpu", mixed_precision = flags.mixed_precision,
    fsdp_plugin = plugin, deepspeed_plugin = zero }
end

--- Endless shuffled batches of a set on the accelerator's device, picked by a permutation; the
--- last, short batch of a pass is dropped.
function common.picked(x, y, batch, device)
  local tensor = require "accelerate.tensor"
  local generator, order, at = tensor.Generator(0), nil, math.huge
  x, y = x:to(device), y:to(device)
  return function()
    if at + batch - 1 > y:numel() then
      order, at = tensor.randperm(y:numel(), { generator = generator }):to(device), 1
    end
    local pick = order:narrow(1, at, batch)
    at = at + batch
    return x:index_select(1, pick), y:index_select(1, pick)
  end
end

--- A figure of /proc/self/status in bytes: VmRSS (resident now) or VmHWM (the most there ever was).
function common.resident(field)
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^" .. (field or "VmRSS") .. ":%s+(%d+)")
    if kib then return tonumber(kib) * 1024 end
  end
end

--- A function that returns the loader's next batch, pass after pass.
function common.endless(loader)
  local next_batch, state, control
  return function()
    for _ = 1, 2 do
      if not next_batch then next_batch, state, control = loader:iter() end
      local batch = { next_batch(state, control) }
      control = batch[1]
      if control ~= nil then return unpack(batch) end
      next_batch = nil
    end
    error("the loader is empty", 0)
  end
end

--- Times `flags.steps` steps after `flags.warmup` more, on each rank, and prints the main process's
--- line: median and least milliseconds, the mean of the last losses, the peak of resident memory,
--- in all and beyond `about.before` bytes.  On a GPU each step is waited for; a second block, in
--- which nothing waits between steps, gives loop_step_ms and with about.units what is done in a
--- second; peak_device_mb is the most that tensors took there.  train_step(next_batch()) does a
--- step and returns its loss.
function common.train(accelerator, flags, about, next_batch, train_step)
  local steps, device, before = flags.steps, accelerator.device, about.before
  local remote = device ~= "cpu"
  if flags.capture then train_step = require("accelerate").utils.capture(train_step) end
  local function step() return train_step(next_batch()) end
  local function wait() if remote then core.synchronize(device) end end

  local losses = {}
  local function keep(loss)
    if #losses == 10 then table.remove(losses, 1) end
    losses[#losses + 1] = loss
  end
  about.before, about.ranks, about.device, about.dtype = nil, accelerator.num_processes, device, flags.dtype
  about.captured = flags.capture and 1 or nil
  local tensor = require "accelerate.tensor"
  about.deterministic = tensor.are_deterministic_algorithms_enabled() and 1 or 0
  about.conv_tf32 = tensor.backends.cudnn.allow_tf32 and 1 or 0

  local function measure()
    local times = {}
    for i = 1, steps do
      local began = common.now()
      local loss = step()
      wait()
      times[i] = common.now() - began
      if not flags.capture or i == steps then keep(loss) end -- a replay writes into the same loss
    end
    local per_step = common.median(times)
    about.step_ms, about.least_ms = per_step * 1e3, math.min(unpack(times)) * 1e3
    local sum = 0
    for _, loss in ipairs(losses) do sum = sum + loss:item() end
    about.loss = sum / #losses
    if remote then
      local began = common.now()
      for _ = 1, steps do step() end
      wait()
      per_step = (common.now() - began) / steps
      about.loop_step_ms, about.peak_device_mb = per_step * 1e3, core.memory_stats(device).peak_bytes / 1e6
    end
    if about.units then about.per_second = about.units * accelerator.num_processes / per_step end
    local peak = common.resident("VmHWM")
    about.peak_mb, about.step_mb = peak / 1e6, (peak - before) / 1e6
    if accelerator.is_main_process then common.emit(about) end
  end

  if remote then core.reset_peak_memory_stats(device) end
  for _ = 1, flags.warmup do step() end
  wait()
  if flags.traffic then return common.count_traffic(step, wait) end
  if not flags.serve then return measure() end
  print "ready"
  io.stdout:flush()
  for line in io.lines() do
    if line == "stop" then break end
    measure()
    io.stdout:flush()
  end
end

--- Returns the number that an environment variable has.
function common.setting(name, default)
  local text = os.getenv(name)
  local value = text and tonumber(text)
  if text and not value then error(("bench: %s must be a number, got %q"):format(name, text), 0) end
  return value or default
end

--- Prints what the kernels of one step move, as the device that counts it gives it
--- (kernels/cuda/emulate/traffic.cpp): lines of name, launches, bytes read, written,
--- accessed, and writes.
function common.count_traffic(step, wait)
  ffi.cdef "const char *ax_emulated_traffic(void);"
  local lib = ffi.load(os.getenv "ACCEL_CUDA_PLUGIN" or error("--traffic needs make traffic", 0))
  lib.ax_emulated_traffic()
  step()
  wait()
  io.write(ffi.string(lib.ax_emulated_traffic()))
end

--- Prints a flat table of numbers and strings as one line of JSON, keys sorted, with the backend's
--- description.
function common.emit(fields)
  local info = core.backend_info(fields.device or "cpu")
  fields.backend, fields.level = info.description, info.level
  fields.threads = core.get_num_threads()
  local keys, parts = {}, {}
  for key in pairs(fields) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local value = fields[key]
    parts[i] = ("%q: %s"):format(key, type(value) == "number" and ("%.10g"):format(value)
      or ("%q"):format(value))
  end
  print("{" .. table.concat(parts, ", ") .. "}")
end

return common
