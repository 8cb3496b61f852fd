-- `make traffic`: how many bytes the kernels of a training step read and write, beside the least
-- possible, without a GPU and without a clock.
--
--   accel-run bench/traffic.lua [PATTERN]      PATTERN: only the steps whose name it matches
--
-- Steps of tiny models run on the emulated device that counts (kernels/cuda/emulate/traffic.cpp):
-- the benchmarks' own scripts with --traffic, at several sizes.  Each kernel's bytes are sums of
-- terms such as layers * tokens * width, whose factors follow from the runs (least squares, none
-- negative).  The table has the sums at full size, and how far the sums are from what was counted.
--
-- `least` is what a step moves at least, with the types that it has and with a kernel for every
-- run of operations that no product separates: it reads and writes each of its tensors once.
local here = arg and arg[0] and arg[0]:match("^(.*bench)/") or "bench"
local M = {}

-- ---- from bytes at several sizes to factors of terms

--- Returns factors c >= 0 with which the sums of c[k] * rows[i][k] are nearest to bytes[i],
--- relative to bytes[i].
function M.fit(rows, bytes)
  local n, terms, c, by = #rows, #rows[1], {}, {}
  local x, rest = {}, {}
  for k = 1, terms do
    c[k], by[k] = 0, 0
    for i = 1, n do by[k] = math.max(by[k], rows[i][k]) end
  end
  for i = 1, n do
    x[i], rest[i] = {}, 1
    for k = 1, terms do x[i][k] = rows[i][k] / math.max(bytes[i], 1) end
  end
  for _ = 1, 20000 do
    local moved = 0
    for k = 1, terms do
      local up, down = 0, 0
      for i = 1, n do
        up = up + x[i][k] * rest[i]
        down = down + x[i][k] ^ 2
      end
      local step = down > 0 and math.max(up / down, -c[k]) or 0
      c[k] = c[k] + step
      for i = 1, n do rest[i] = rest[i] - step * x[i][k] end
      moved = math.max(moved, math.abs(step) * by[k] / math.max(unpack(bytes)))
    end
    if moved < 1e-7 then break end
  end
  return c
end

local function sum_of(c, row)
  local sum = 0
  for k = 1, #c do sum = sum + c[k] * row[k] end
  return sum
end

-- ---- counting

local function quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

--- Runs a step; returns for each kernel { launches, read, written, accessed }.
function M.count(script, arguments)
  local build = (os.getenv "ACCEL_RUN" or "build/accel-run"):match("^(.*)/")
  local command = ("ACCEL_CUDA_PLUGIN=%s ACCEL_CUDA_LIBRARIES=%s ACCEL_EMULATED_DEVICES=1 %s " ..
    "--num_processes 1 --num_cpu_threads_per_process 1 %s --device cuda --traffic 2>&1"):format(
    quote(build .. "/libax_cuda_traffic.so"), quote(build .. "/fakes"), quote(build .. "/accel-run"),
    here .. "/" .. script .. ".lua " .. arguments)
  local pipe = io.popen(command)
  local found, out = {}, {}
  for line in pipe:lines() do
    out[#out + 1] = line
    local name, launches, read, written, accessed = line:match("^([^\t]+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t%d+$")
    if name then
      found[name] = { tonumber(launches), tonumber(read), tonumber(written), tonumber(accessed) }
    end
  end
  pipe:close()
  if not next(found) then
    error(("no traffic was counted:\n%s\n%s"):format(command, table.concat(out, "\n")), 0)
  end
  return found
end

-- ---- the steps

M.steps = dofile(here .. "/traffic_steps.lua")

--- Returns the rows of a step's table, most bytes first: { name, launches, read, written, least };
--- and the largest share by which a run's bytes differ from the sums of the terms.
function M.measure(step)
  local runs, rows, by_layers, names = {}, {}, {}, {}
  for i, sizes in ipairs(step.runs) do
    by_layers[i] = { sizes.layers or 1, 1 }
    runs[i], rows[i] = M.count(step.script, step.arguments(sizes)), step.terms(sizes)
    for name in pairs(runs[i]) do names[name] = true end
  end
  local full, off, list = step.terms(step.full), 0, {}
  local least = step.least(step.full)
  for name in pairs(least) do names[name] = true end
  local counted, fitted = {}, {}
  for name in pairs(names) do
    local row = { name = name, least = least[name] or 0 }
    for at, what in ipairs { "launches", "read", "written" } do
      local bytes = {}
      for i = 1, #runs do bytes[i] = runs[i][name] and runs[i][name][at] or 0 end
      local c = M.fit(at == 1 and by_layers or rows, bytes)
      row[what] = sum_of(c, at == 1 and { step.full.layers or 1, 1 } or full)
      for i = 1, at > 1 and #runs or 0 do
        counted[i] = (counted[i] or 0) + bytes[i]
        fitted[i] = (fitted[i] or 0) + sum_of(c, rows[i])
      end
    end
    list[#list + 1] = row
  end
  for i = 1, #runs do off = math.max(off, math.abs(fitted[i] / counted[i] - 1)) end
  table.sort(list, function(a, b) return a.read + a.written > b.read + b.written end)
  return list, off
end

function M.total(list)
  local bytes, least = 0, 0
  for _, row in ipairs(list) do bytes, least = bytes + row.read + row.written, least + row.least end
  return bytes, least
end

local function show(step, list, off)
  io.stdout:setvbuf "line"
  local bytes, least = M.total(list)
  print(("\n%s: %.2f GB, %.2f x the least (%.2f GB); sums within %.1f %% of the counts\n"):format(step.name,
    bytes / 1e9, bytes / least, least / 1e9, off * 100))
  print "| kernel | launches | read, MB | written, MB | least, MB | beyond it, MB |"
  print "|---|---|---|---|---|---|"
  local rest = { name = "others", launches = 0, read = 0, written = 0, least = 0 }
  local function line(row)
    print(("| %s | %.0f | %.1f | %.1f | %.1f | %.1f |"):format(row.name, row.launches, row.read / 1e6,
      row.written / 1e6, row.least / 1e6, (row.read + row.written - row.least) / 1e6))
  end
  for _, row in ipairs(list) do
    if math.max(row.read + row.written, row.least) > 0.002 * bytes then line(row)
    else
      for _, key in ipairs { "launches", "read", "written", "least" } do rest[key] = rest[key] + row[key] end
    end
  end
  line(rest)
end

function M.main(pattern)
  for _, step in ipairs(M.steps) do
    if step.name:find(pattern or "") then show(step, M.measure(step)) end
  end
end

if arg and arg[0] and arg[0]:find("traffic%.lua$") then M.main(arg[1]) end
return M
