-- `make check-cuda`: what nvcc made of the kernels against kernels/cuda/budgets.txt.
--
--   accel-run spec/support/check_cuda.lua [--write] FOLDER
--
-- FOLDER has what cuobjdump says of the objects of `make cuda` (*.made), for one architecture or
-- several.  The figures of a kernel are the worst of its instances:
--   warps    that a multiprocessor holds, by registers, threads and static shared memory
--   stack    bytes of a thread's stack: local copies, and registers that did not fit
--   wide     instances with accesses of 16 bytes to global memory
--   narrow   accesses of less than 16 bytes in such an instance: what is left of a row, numbers of
--            it, and what should have been a run
--   rounds   of a launch with grid=N: how often its blocks fill the GPU
-- A figure worse than its budget is an error, and so are a kernel that cannot be launched, one
-- without a budget, a stack above 64 bytes without a reason, and a launch that has more blocks for
-- each multiprocessor (blocks=N) than one holds.  --write (make check-cuda BUDGETS=--write)
-- replaces the figures of the architectures that are there, and keeps threads, blocks, grids and
-- reasons.
local M = {}

local BUDGETS = "kernels/cuda/budgets.txt"
-- multiprocessors of an A100, H100 and B200; shared memory of one, in bytes
local GPUS = { sm_80 = { 108, 164 * 1024 }, sm_90 = { 132, 228 * 1024 }, sm_100 = { 148, 228 * 1024 } }
local FIGURES = { "warps", "stack", "wide", "narrow" } -- and "rounds", where there is a grid
local MOST_STACK = 64

-- ---- reading

-- The function's own name in a mangled one.
local function base_name(mangled)
  local digits, rest = mangled:match "^_ZN?L?(%d+)(.*)$"
  local name = digits and rest:sub(1, tonumber(digits)) or mangled
  if name:find "^_GLOBAL__N_" then
    digits, rest = rest:sub(tonumber(digits) + 1):match "^L?(%d+)(.*)$"
    name = rest:sub(1, tonumber(digits))
  end
  return name
end

-- The instances that cuobjdump's two listings name, one behind the other: by architecture and
-- mangled name.
function M.instances(text)
  local found, arch, name, one = {}, nil, nil, nil
  for line in text:gmatch "[^\n]+" do
    arch = line:match "^arch = (%S+)" or arch
    name = line:match "^%s*Function (%S+):$" or name
    local registers, stack, shared = line:match "REG:(%d+) STACK:(%d+) SHARED:(%d+)"
    if registers then
      found[arch .. " " .. name] = { arch = arch, kernel = base_name(name), registers = tonumber(registers),
        stack = tonumber(stack), shared = tonumber(shared), wide = 0, narrow = 0 }
    end
    local listed = line:match "Function : (%S+)"
    if listed then one = found[arch .. " " .. listed] end
    local access = one and (line:match "%f[%w]LDG(%.[%w.]+)" or line:match "%f[%w]STG(%.[%w.]+)")
    if access then
      local kind = (access .. "."):find(".128.", 1, true) and "wide" or "narrow"
      one[kind] = one[kind] + 1
    end
  end
  return found
end

-- Blocks that a multiprocessor holds.
local function resident(one, threads, gpu)
  local each = math.ceil(threads / 32)
  local by_registers = math.floor(math.floor(65536 / (math.ceil(one.registers * 32 / 256) * 256)) / each)
  local by_shared = math.floor(gpu[2] / (one.shared + 1024))
  return math.min(by_registers, by_shared, math.floor(64 / each), 32)
end

-- A line's figures by name; nil: not as many as it has.
local function figures_of(text, has_grid)
  local found, n = {}, 0
  for number in text:gmatch "[^/]+" do
    n = n + 1
    found[FIGURES[n] or "rounds"] = tonumber(number)
  end
  return n == #FIGURES + (has_grid and 1 or 0) and text:match "^%d[%d/]*%d$" and found or nil
end

-- The table: lines "FILE KERNEL threads=256 [blocks=3] [grid=512] [reason="..."] sm_90=64/0/3/6
-- ...".
function M.parse(text)
  local budgets = {}
  for line in text:gmatch "[^\n]+" do
    local file, kernel, rest = line:match "^(%w[%w_]*) +([%w_]+)(.*)$"
    if file then
      local b = { file = file, kernel = kernel, threads = 256, archs = {},
        reason = rest:match 'reason="([^"]*)"' }
      rest = rest:gsub('reason="[^"]*"', "")
      for key, value in rest:gmatch "(%w[%w_]*)=(%S+)" do
        if GPUS[key] then
          b.archs[key] = figures_of(value, b.grid)
          assert(b.archs[key], ("%s: %s %s: %s figures expected, got %s=%s"):format(BUDGETS, file, kernel,
            b.grid and "five" or "four", key, value))
        else
          b[key] = assert(tonumber(value), ("%s: %s=%s is no number"):format(BUDGETS, key, value))
        end
      end
      budgets[file .. " " .. kernel] = b
    end
  end
  return budgets
end

-- The worst figures by kernel and architecture.
function M.figures(file, instances, budgets)
  local worst = {}
  for _, one in pairs(instances) do
    local key, gpu = file .. " " .. one.kernel, GPUS[one.arch]
    if gpu then
      local threads, grid = budgets[key] and budgets[key].threads or 256, budgets[key] and budgets[key].grid
      worst[key] = worst[key] or { file = file, kernel = one.kernel, archs = {} }
      local blocks = resident(one, threads, gpu)
      local w = worst[key].archs[one.arch]
      if not w then
        w = { warps = math.huge, stack = 0, wide = 0, narrow = 0, registers = 0, blocks = math.huge,
          shared = 0 }
        worst[key].archs[one.arch] = w
      end
      w.warps, w.blocks = math.min(w.warps, blocks * math.ceil(threads / 32)), math.min(w.blocks, blocks)
      w.stack, w.registers = math.max(w.stack, one.stack), math.max(w.registers, one.registers)
      w.shared = math.max(w.shared, one.shared)
      w.rounds = grid and w.blocks > 0 and math.ceil(grid / (w.blocks * gpu[1])) or nil
      if one.wide > 0 then w.wide, w.narrow = w.wide + 1, math.max(w.narrow, one.narrow) end
    end
  end
  return worst
end

-- ---- comparing

-- What is wrong with a kernel's figures, as lines that name kernel, architecture, budget, figure.
function M.compare(key, worst, budget)
  local broken = {}
  for arch, w in pairs(worst.archs) do
    local function wrong(format, ...)
      broken[#broken + 1] = ("%s.cu: %s, %s: "):format(worst.file, worst.kernel, arch) .. format:format(...)
    end
    local b = budget and budget.archs[arch]
    if w.blocks == 0 then
      wrong("%d registers a thread x %d threads are more than 65536", w.registers, budget and budget.threads
        or 256)
    end
    if not b then wrong("has no budget in %s", BUDGETS) end
    for _, name in ipairs(b and FIGURES or {}) do
      local more = name == "warps" or name == "wide" -- the better
      if more and w[name] < b[name] or not more and w[name] > b[name] then
        wrong("%s: %d, the budget is %s %d%s", name, w[name], more and "at least" or "at most", b[name],
          name == "warps" and (" (%d registers a thread)"):format(w.registers) or "")
      end
    end
    if b and w.stack > MOST_STACK and not budget.reason then
      wrong("%d bytes of stack: above %d a reason is expected in %s", w.stack, MOST_STACK, BUDGETS)
    end
    local each, limit = GPUS[arch][1], budget and budget.blocks
    if limit and w.blocks > 0 and limit > w.blocks then
      wrong("a launch has %d blocks for each multiprocessor, which holds %d (%d registers a thread, %d " ..
        "bytes of shared memory): a second round of %d", limit, w.blocks, w.registers, w.shared,
        (limit - w.blocks) * each)
    end
    if b and b.rounds and w.rounds and w.rounds > b.rounds then
      wrong("rounds: %d, the budget is at most %d (a grid of %d blocks for %d slots, " ..
        "%d multiprocessors x %d)",
        w.rounds, b.rounds, budget.grid, w.blocks * each, each, w.blocks)
    end
  end
  table.sort(broken)
  return broken
end

-- ---- the program

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local function read(path)
  local f = io.open(path)
  local text = f and f:read "*a" or ""
  if f then f:close() end
  return text
end

local function sorted(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- The table's text: its head as it is, then a line for each kernel.
function M.format(head, budgets, worst)
  local lines = {}
  for _, key in ipairs(sorted(worst)) do
    local w, b = worst[key], budgets[key] or { threads = 256, archs = {} }
    local line = { ("%-16s %-28s threads=%d"):format(w.file, w.kernel, b.threads) }
    if b.blocks then line[#line + 1] = ("blocks=%d"):format(b.blocks) end
    if b.grid then line[#line + 1] = ("grid=%d"):format(b.grid) end
    if b.reason then line[#line + 1] = ('reason="%s"'):format(b.reason) end
    for arch, figures in pairs(w.archs) do b.archs[arch] = figures end
    for _, arch in ipairs { "sm_80", "sm_90", "sm_100" } do
      local f = b.archs[arch]
      if f then
        line[#line + 1] = ("%s=%d/%d/%d/%d"):format(arch, f.warps, f.stack, f.wide, f.narrow) ..
          (b.grid and ("/%d"):format(f.rounds or 0) or "")
      end
    end
    lines[#lines + 1] = table.concat(line, " ")
  end
  return head .. table.concat(lines, "\n") .. "\n"
end

local function main(arguments)
  local folder, write
  for _, argument in ipairs(arguments) do
    if argument == "--write" then write = true else folder = argument end
  end
  if not folder then error("check_cuda: expected the folder of the kernels' objects", 0) end
  local text = read(BUDGETS)
  local budgets, worst, archs = M.parse(text), {}, {}
  for path in output_of(("find '%s' -name '*.made' | sort"):format(folder)):gmatch "[^\n]+" do
    for key, w in pairs(M.figures(path:match "([^/]+)%.made$", M.instances(read(path)), budgets)) do
      worst[key] = w
      for arch in pairs(w.archs) do archs[arch] = true end
    end
  end
  if not next(worst) then error(("check_cuda: no kernel in %s; run make cuda first"):format(folder), 0) end
  if write then
    local f = assert(io.open(BUDGETS, "w"))
    f:write(M.format(text:match "^(#.-\n)%w" or text, budgets, worst))
    f:close()
    budgets = M.parse(read(BUDGETS))
  end
  local broken, kernels = 0, 0
  for _, key in ipairs(sorted(worst)) do
    kernels = kernels + 1
    for _, line in ipairs(M.compare(key, worst[key], budgets[key])) do
      print(line)
      broken = broken + 1
    end
  end
  for _, key in ipairs(sorted(budgets)) do
    if not worst[key] then
      print(("%s: a budget for a kernel that is not there: %s"):format(BUDGETS, key))
      broken = broken + 1
    end
  end
  print(("%d kernels for %s: %d broken"):format(kernels, table.concat(sorted(archs), ", "), broken))
  os.exit(broken == 0)
end

if arg and arg[0] and arg[0]:find "check_cuda%.lua$" then main(arg) end
return M
