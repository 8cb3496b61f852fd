-- What our sides of the benchmarks share: a wall clock, medians, the images, and the line of JSON at the end.
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

function common.median(values)
  local sorted = { unpack(values) }
  table.sort(sorted)
  local n = #sorted
  return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

--- The training images as float32 [60000, 784] in 0 to 1, and the labels as int64 [60000].
function common.fashion_mnist(data)
  local dataset = data.FashionMNIST { split = "train" }
  local next_batch, state, control = data.DataLoader(dataset, { batch_size = dataset:len() }):iter()
  local x, y = next_batch(state, control)
  return x:reshape(dataset:len(), 784), y
end

--- Takes `--dtype fp32|bf16` out of a list of arguments and returns the mixed_precision that it means: "no" or "bf16".
function common.mixed_precision(arguments)
  for i, word in ipairs(arguments) do
    if word == "--dtype" then
      local mode = ({ fp32 = "no", bf16 = "bf16" })[arguments[i + 1]]
      if not mode then error(("--dtype: expected fp32 or bf16, got %s"):format(tostring(arguments[i + 1])), 0) end
      table.remove(arguments, i)
      table.remove(arguments, i)
      return mode
    end
  end
  return "no"
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

--- Times `steps` calls of step() after `warmup` more, on each rank, and prints the main process's line: median and least milliseconds, the
--- mean of the last ten losses, the peak of resident memory, in all and beyond `about.before` bytes.
function common.train(accelerator, steps, warmup, about, step)
  local times, losses = {}, {}
  for i = 1, warmup + steps do
    local began = common.now()
    local loss = step()
    if i > warmup then times[#times + 1] = common.now() - began end
    if i > warmup + steps - 10 then losses[#losses + 1] = loss end
  end
  if not accelerator.is_main_process then return end
  local sum, peak = 0, common.resident("VmHWM")
  for _, loss in ipairs(losses) do sum = sum + loss:item() end
  about.step_ms, about.least_ms, about.loss = common.median(times) * 1e3, math.min(unpack(times)) * 1e3, sum / #losses
  about.peak_mb, about.step_mb, about.before = peak / 1e6, (peak - about.before) / 1e6, nil
  about.ranks = accelerator.num_processes
  common.emit(about)
end

--- Prints a flat table of numbers and strings as one line of JSON, keys sorted, with the backend's description.
function common.emit(fields)
  fields.backend = core.backend_info().description
  fields.level = core.backend_info().level
  fields.threads = core.get_num_threads()
  local keys, parts = {}, {}
  for key in pairs(fields) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local value = fields[key]
    parts[i] = ("%q: %s"):format(key, type(value) == "number" and ("%.6g"):format(value) or ("%q"):format(value))
  end
  print("{" .. table.concat(parts, ", ") .. "}")
end

return common
