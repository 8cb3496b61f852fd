-- `make bench-gpu`: training steps and single kernels on a GPU beside PyTorch's eager, compiled and
-- Accelerate-driven ones, on the same GPU in one run.
--
--   accel-run bench/gpu.lua
--
-- Environment:
--   PYTHON         an interpreter with PyTorch and, for the last of the three, accelerate (default:
--                  python3)
--   ROUNDS         how often a row's sides take turns; medians of the rounds are shown (default 3)
--   ONLY           a Lua pattern: only the rows whose name it matches
--   COMPILE        no: without torch.compile; all: for every row (default: where it counts, since
--                  compiling takes half a minute)
--   BENCH_SECONDS  no row is begun after so many seconds (default 340); the rows stand in the order
--                  of what matters most: first what has not been measured on the present code
--   BENCH_OUT      folder for bench-gpu.md and bench-gpu.jsonl (default bench/results-gpu)
--   BENCH_SMOKE    cpu or cuda: tiny sizes, ours on that device (cuda: the emulated one counts),
--                  PyTorch's on the CPU; the figures mean nothing
--
-- Every side of a row is a process that is set up and warmed up once and then measures on request,
-- so that the sides take turns within a second.  Throughput is of steps that nothing waits between,
-- and ratios are of throughput; memory is the most that tensors took.
local here = arg[0]:match("^(.*)/") or "."
local ffi = require "ffi"
local common = dofile(here .. "/common.lua")
local core = require "accelerate.core"

local host = os.getenv("ACCEL_RUN") or "build/accel-run"
local python = os.getenv("PYTHON") or "python3"
local rounds, only = common.setting("ROUNDS", 3), os.getenv("ONLY") or ""
local compile, seconds = os.getenv("COMPILE") or "", common.setting("BENCH_SECONDS", 340)
if compile ~= "" and compile ~= "no" and compile ~= "all" then
  error(("bench: COMPILE must be no or all, got %q"):format(compile), 0)
end
if arg[1] then
  error(("bench: no arguments are taken, got %q; ONLY=PATTERN chooses rows"):format(arg[1]), 0)
end
local smoke = os.getenv("BENCH_SMOKE")
local out = os.getenv("BENCH_OUT") or (here .. "/results-gpu")
local began = common.now()
local PEAK = 989e12 -- an H100's or H200's dense bf16 products, without sparsity, by NVIDIA's data sheet

-- name, our script and its arguments, PyTorch's arguments, what a unit is.  capture: also with
-- captured steps.  free: also without deterministic algorithms, which are our default.  compile: by
-- default also compiled.  smoke: other arguments, ours and theirs.
local ROWS = {
  { "GPT-2 774M, T 1024, batch 8, bf16", "gpt", "774m 10 4 --batch 8 --dtype bf16",
    "gpt --preset 774m --batch 8 --dtype bf16 --steps 10", "tokens",
    compile = true, mfu = true,
    smoke = { "smoke 2 1 --dtype bf16", "gpt --preset smoke --steps 2 --dtype bf16" } },
  { "GPT-2 124M, T 1024, batch 8, fp8 (PyTorch: bf16)", "gpt", "124m 20 5 --batch 8 --dtype fp8",
    "gpt --preset 124m --batch 8 --dtype bf16 --steps 20", "tokens",
    smoke = { "smoke 2 1 --dtype fp8", "gpt --preset smoke --steps 2 --dtype bf16" } },
  { "ResNet-50, 224 x 224, batch 64, fp32", "resnet50", "--batch 64 --steps 20 --warmup 5",
    "resnet50 --batch 64 --steps 20", "samples" },
  { "GPT-2 124M, T 1024, batch 8, bf16", "gpt", "124m 20 5 --batch 8 --dtype bf16",
    "gpt --preset 124m --batch 8 --dtype bf16 --steps 20", "tokens",
    compile = true, mfu = true, free = true,
    smoke = { "smoke 2 1 --dtype bf16", "gpt --preset smoke --steps 2 --dtype bf16" } },
  { "MLP, batch 64, fp32", "mlp", "64 400 50", "mlp --batch 64 --steps 400 --warmup 50", "samples",
    capture = true,
    smoke = { "4 2 1", "mlp --batch 4 --steps 2" } },
  { "GPT-2 124M, T 1024, batch 8, tf32", "gpt", "124m 15 4 --batch 8 --tf32",
    "gpt --preset 124m --batch 8 --tf32 --steps 15", "tokens",
    smoke = { "smoke 2 1 --tf32", "gpt --preset smoke --steps 2 --tf32" } },
  { "ResNet-50, 224 x 224, batch 64, fp16", "resnet50", "--batch 64 --dtype fp16 --steps 20 --warmup 5",
    "resnet50 --batch 64 --dtype fp16 --steps 20", "samples" },
  { "ResNet-50, 224 x 224, batch 64, fp32, convolutions in TF32", "resnet50",
    "--batch 64 --steps 20 --warmup 5 --conv-tf32", "resnet50 --batch 64 --steps 20 --conv-tf32", "samples",
    smoke = { "--batch 2 --side 32 --width 2 --steps 1 --warmup 1 --conv-tf32",
      "resnet50 --batch 2 --side 64 --steps 1 --conv-tf32" } },
  { "GPT 6 x 384, T 256, batch 64, fp32", "gpt", "small 30 5 --batch 64",
    "gpt --preset small --batch 64 --steps 30", "tokens" },
  { "GPT 4 x 128, T 128, batch 8, bf16", "gpt", "tiny 150 20 --dtype bf16",
    "gpt --preset tiny --batch 8 --dtype bf16 --steps 150 --warmup 20", "tokens",
    capture = true, smoke = { "smoke 2 1", "gpt --preset smoke --steps 2" } },
  { "BERT base, seq 128, batch 8, bf16", "bert", "base 40 5 --dtype bf16",
    "bert --preset base --batch 8 --dtype bf16 --steps 40", "samples",
    compile = true, smoke = { "smoke 1 1 --batch 1", "bert --preset smoke --batch 1 --steps 1" } },
  { "ResNet-50, 224 x 224, batch 64, bf16", "resnet50", "--batch 64 --dtype bf16 --steps 30 --warmup 5",
    "resnet50 --batch 64 --dtype bf16 --steps 30",
    "samples", compile = true, free = true,
    smoke = { "--batch 2 --side 32 --steps 1 --warmup 1", "resnet50 --batch 2 --side 64 --steps 1" } },
  { "BERT base, seq 128, batch 8, fp32", "bert", "base 30 5", "bert --preset base --batch 8 --steps 30",
    "samples" },
  { "MLP, batch 512, fp32", "mlp", "512 300 50", "mlp --batch 512 --steps 300 --warmup 50", "samples",
    capture = true },
  { "GPT 6 x 384, T 256, batch 64, bf16", "gpt", "small 50 10 --batch 64 --dtype bf16",
    "gpt --preset small --batch 64 --dtype bf16 --steps 50", "tokens" },
  { "CNN, batch 64, bf16", "cnn", "64 100 20 --dtype bf16", "cnn --batch 64 --dtype bf16 --steps 100",
    "samples", capture = true },
  { "CNN, batch 64, fp32", "cnn", "64 100 20", "cnn --batch 64 --steps 100", "samples" },
  { "CNN, batch 64, fp32, convolutions in TF32", "cnn", "64 100 20 --conv-tf32",
    "cnn --batch 64 --steps 100 --conv-tf32", "samples" },
  { "GPT 4 x 128, T 128, batch 8, fp32", "gpt", "tiny 150 20",
    "gpt --preset tiny --batch 8 --steps 150 --warmup 20", "tokens", capture = true },
}
-- After so many of them come the single kernels.
local KERNELS_AFTER = 5

local function left() return seconds - (common.now() - began) end

local function number(line, field)
  return tonumber(line:match(('"%s": ([-+.%%deE]+)'):format(field)))
end

local function text(line, field)
  return line and line:match(('"%s": "([^"]*)"'):format(field))
end

local function show(value, unit)
  if not value then return "" end
  return (value >= 100 and "%.0f" or value >= 10 and "%.1f" or "%.3g"):format(value) ..
    (unit and " " .. unit or "")
end

-- ---- processes that are asked and answer

-- A side that has ended is an answer that does not come, not the end of us (SIGPIPE is 13, SIG_IGN
-- is 1).
ffi.cdef "void *signal(int number, void *handler);"
ffi.C.signal(13, ffi.cast("void *", 1))

local Process = {}
Process.__index = Process

-- A pipe to its input, its output to read, what it complains of in a file.
local function start(command)
  local base = os.tmpname()
  os.remove(base)
  if not os.execute(("mkfifo '%s'"):format(base)) then error("cannot make the pipe " .. base, 0) end
  local self = setmetatable({ path = base }, Process)
  self.output = assert(io.popen(("%s <'%s' 2>'%s.err'"):format(command, base, base)))
  self.input = assert(io.open(base, "w"))
  self.input:setvbuf("line")
  os.remove(base)
  return self
end

--- Sends a line (none: only waits) and returns the next line that answers it, or nil and why there
--- is none.
function Process:ask(line)
  if line then self.input:write(line, "\n") end
  while true do
    local answer = self.output:read("*l")
    if not answer then
      local f = io.open(self.path .. ".err")
      local why = f and f:read("*a") or ""
      if f then f:close() end
      return nil, why:sub(-1500)
    end
    if answer == "ready" or answer:match("^{") then return answer end
  end
end

-- A later process has our end of this pipe too, so that closing it is no end.
function Process:stop()
  self.input:write("stop\n")
  self.input:close()
  self.output:close()
  os.remove(self.path .. ".err")
end

-- ---- sides

local lines = {} -- of JSON, as they came
local notes, failed = {}, false -- failed: one of our sides
local function note(pattern, ...)
  notes[#notes + 1] = pattern:format(...)
  io.stderr:write("bench: ", notes[#notes], "\n")
end

local device = smoke or "cuda"
local function ours(script, arguments)
  return ("'%s' --num_cpu_threads_per_process 4 '%s/%s.lua' %s --device %s --serve"):format(host, here,
    script, arguments, device)
end

local torch, about -- PyTorch's process, and its report about itself
local function start_torch()
  torch = start(("PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1 '%s' '%s/peer/gpu.py' --serve"):format(python,
    here))
  local line, why = torch:ask()
  if not line then
    note("'%s' has no PyTorch, so only our side is measured: %s", python, why:match("[^\n]*Error[^\n]*")
      or why)
    torch:stop()
    torch = false
  else
    about = line
  end
end

local function measure(row)
  local script, mine, theirs, unit = row[2], row[3], row[4], row[5]
  if smoke then mine, theirs = row.smoke[1], row.smoke[2] .. " --device cpu" end
  io.stderr:write(("%4.0f s: %s\n"):format(common.now() - began, row[1]))
  local sides = {}
  local function mine_of(name, arguments)
    local process = start(ours(script, arguments))
    local ready, why = process:ask()
    if ready then
      sides[#sides + 1] = { name = name, ask = function() return process:ask("go") end, process = process }
    else
      failed = true
      note("%s, %s: %s", row[1], name, why)
      process:stop()
    end
  end
  mine_of("accel", mine)
  if row.capture then mine_of("captured", mine .. " --capture") end
  if row.free then mine_of("free", mine .. " --nondeterministic") end
  if torch == nil then start_torch() end
  if torch then
    local modes = "eager,accelerate"
    if compile == "all" or (row.compile and compile ~= "no") then modes = "eager,compile,accelerate" end
    local answer, why = torch:ask(("--workload %s --modes %s"):format(theirs, modes))
    if not answer then
      note("%s: PyTorch's process ended: %s", row[1], why)
      torch:stop()
      torch = nil -- a fresh one for the next row
    else
      if text(answer, "error") then note("%s, PyTorch: %s", row[1], text(answer, "error")) end
      for mode in modes:gmatch("%a+") do
        local lost = text(answer, mode .. "_error")
        if lost then note("%s, PyTorch %s: %s", row[1], mode, lost)
        elseif not text(answer, "error") then
          sides[#sides + 1] = { name = mode,
          ask = function() return torch and torch:ask("go " .. mode) end } end
      end
    end
  end
  row.sides = {}
  for round = 1, rounds do
    if round > 1 and left() < 0 then break end
    for _, side in ipairs(sides) do
      local line, why = side.ask()
      if line and number(line, "loop_step_ms") or line and number(line, "step_ms") then
        lines[#lines + 1] = ('{"row": "%s", "side": "%s", "round": %d, %s'):format(row[1], side.name, round,
          line:sub(2))
        local kept = row.sides[side.name]
          or { rate = {}, step = {}, memory = {}, flops = number(line, "flops"),
          units = number(line, "units") }
        row.sides[side.name] = kept
        table.insert(kept.rate, number(line, "per_second"))
        table.insert(kept.step, number(line, "step_ms"))
        table.insert(kept.memory, number(line, "peak_device_mb"))
        row.loss = row.loss or {}
        row.loss[side.name] = number(line, "loss")
      else
        if side.process then failed = true end
        note("%s, %s: %s", row[1], side.name, tostring(why or line))
      end
    end
  end
  for _, side in ipairs(sides) do if side.process then side.process:stop() end end
  row.unit = unit
end

-- ---- single kernels

local kernels = { {}, {} }
local function measure_kernels()
  local sizes = smoke and "--mb 1 --side 64 --launches 100 --steps 1" or ""
  local small = smoke == "cuda" and "--mb 0.125 --side 16 --launches 100 --steps 1" or sizes
  local commands = {
    ("'%s' '%s/kernels.lua' --device %s %s 2>&1"):format(host, here, device, small),
    torch ~= false and ("PYTHONWARNINGS=ignore '%s' '%s/peer/kernels.py' --device %s %s 2>&1"):format(python,
      here, smoke and "cpu" or "cuda", sizes),
  }
  for round = 1, rounds > 3 and 2 or 1 do -- a figure is a median of many already
    for s = 1, 2 do
      if commands[s] then
        io.stderr:write(("%4.0f s: single kernels, %s\n"):format(common.now() - began, s == 1 and "ours"
          or "PyTorch's"))
        local pipe = io.popen(commands[s])
        local answer = pipe:read("*a")
        pipe:close()
        local line = answer:match("{[^\n]*}")
        if line then
          lines[#lines + 1] = ('{"row": "kernels", "side": "%s", "round": %d, %s'):format(s == 1 and "accel"
            or "eager", round, line:sub(2))
          for field, value in line:gmatch('"([%w_]+)": ([-+.%deE]+)') do
            kernels[s][field] = kernels[s][field] or {}
            table.insert(kernels[s][field], tonumber(value))
          end
        else
          note("single kernels, %s: %s", s == 1 and "ours" or "PyTorch's", answer:sub(-600))
          commands[s] = nil
        end
      end
    end
  end
end

-- ---- the tables

local unmeasured = {} -- names of rows that there was no time for

local page
local function say(pattern, ...)
  page[#page + 1] = select("#", ...) > 0 and pattern:format(...) or pattern
end

local function row_of(cells)
  say("| " .. table.concat(cells, " | ") .. " |")
end

local function middle(values) return values and #values > 0 and common.median(values) or nil end

-- Our sides of a row, and what their lines have behind the row's name.
local OURS = { { "accel", "" }, { "captured", ", captured" }, { "free", ", not deterministic" } }

local function say_steps()
  if smoke then say("These are the figures of a smoke run at tiny sizes: they mean nothing.\n") end
  row_of { "training steps", "accel", "a step, waited for", "over eager", "over compile", "over Accelerate",
    "eager", "compile", "Accelerate",
    "memory, of eager's", "MFU", "loss, eager's" }
  say("|---|---|---|---|---|---|---|---|---|---|---|---|")
  for _, row in ipairs(ROWS) do
    for _, each in ipairs(OURS) do
      local name, behind = unpack(each)
      local side = row.sides and row.sides[name]
      if side then
        local rate, peer = middle(side.rate), {}
        for _, mode in ipairs { "eager", "compile", "accelerate" } do
          peer[mode] = row.sides[mode] and middle(row.sides[mode].rate)
        end
        local function over(mode) return peer[mode] and ("%.2f"):format(rate / peer[mode]) or "" end
        local memory = row.sides.eager and middle(row.sides.eager.memory)
        local mine = middle(side.memory)
        row_of { row[1] .. behind, show(rate, row.unit .. "/s"),
          show(middle(side.step), "ms"), over "eager", over "compile",
          over "accelerate", show(peer.eager), show(peer.compile), show(peer.accelerate),
          mine and memory and memory > 0 and ("%.2f (%.0f MB)"):format(mine / memory, mine) or mine
          and ("%.0f MB"):format(mine) or "",
          row.mfu and side.flops and ("%.1f %%"):format(side.flops / side.units * rate / PEAK * 100) or "",
          show(row.loss[name]) .. (row.loss.eager and ", " .. show(row.loss.eager) or "") }
      end
    end
  end
end

-- Throughput with deterministic algorithms beside that without.
local function say_determinism()
  for _, row in ipairs(ROWS) do
    local free = row.sides and row.sides.free
    if free and row.sides.accel then
      say("\nThe price of determinism, %s: %.1f %% of the throughput.", row[1],
        100 * (1 - middle(row.sides.accel.rate) / middle(free.rate)))
    end
  end
end

local function say_kernels()
  local function value(s, field) return middle(kernels[s][field]) end
  say("")
  row_of { "single kernels", "accel", "of the copy bandwidth", "PyTorch", "of the copy bandwidth", "ratio" }
  say("|---|---|---|---|---|---|")
  local function line(name, field, unit, more)
    local a, b = value(1, field), value(2, field)
    if not a then return end
    local share = field:gsub("_ms$", "_of_copy")
    local function of(s)
      return share ~= field and value(s, share) and ("%.0f %%"):format(100 * value(s, share)) or ""
    end
    row_of { name, show(a, unit), of(1), show(b, b and unit), of(2), b
      and ("%.2f"):format(more and a / b or b / a) or "" }
  end
  for _, dtype in ipairs { { "", "" }, { "_bf16", ", bf16" } } do
    line("copy" .. dtype[2], "copy" .. dtype[1] .. "_gbs", "GB/s", true)
    for _, op in ipairs { "mul", "relu", "relu_grad", "gelu", "gelu_grad", "softmax", "softmax_grad",
      "layer_norm", "layer_norm_grad", "cross_entropy",
      "cross_entropy_grad", "sum" } do
      line((op:gsub("_grad$", ", with its gradient")) .. dtype[2], op .. dtype[1] .. "_ms", "ms")
    end
  end
  line("AdamW", "adamw_ms", "ms")
  line("SGD with momentum", "momentum_ms", "ms")
  local side = value(1, "side")
  for _, dtype in ipairs { "bf16", "fp16", "fp32" } do
    for _, n in ipairs { side, side / 4 } do
      line(("product of %d x %d, %s"):format(n, n, dtype), ("mm_%s_%d_tflops"):format(dtype, n), "TFLOP/s",
        true)
    end
  end
  line(("product of %d x %d, fp8"):format(side, side), ("mm_fp8_%d_tflops"):format(side), "TFLOP/s", true)
  for _, name in ipairs { "Q4_K", "nf4", "int8" } do
    line(("one row by a matrix in %s, bytes of its codes"):format(name), ("row_%s_gbs"):format(name), "GB/s",
      true)
  end
  line(("causal attention with its gradient, 8 x 12 x %d x 64, bf16"):format(side / 8), "attention_grad_ms",
    "ms")
  line("add of 4 elements", "add_ns", "ns")
  line("the same, with its gradient", "add_grad_ns", "ns")
  local bare = value(1, "bare_launch_ns")
  if bare then
    say("\nA bare launch takes %.0f ns, an add of 4 elements %+.0f ns beyond that.", bare,
      value(1, "add_ns") - bare)
  end
end

local function say_facts()
  say("")
  say("%s: %s. PyTorch %s, CUDA %s, cuDNN %s, accelerate %s, Python %s.", os.date("!%Y-%m-%d %H:%M UTC"),
    core.backend_info(device).description or "?",
    text(about, "torch") or "not there", text(about, "cuda") or "?",
    tostring(about and number(about, "cudnn") or "?"), text(about, "accelerate") or "not there",
    text(about, "python") or "?")
  say("%s", io.popen("nvidia-smi --query-gpu=name,driver_version,memory.total " ..
    "--format=csv,noheader 2>/dev/null"):read("*l") or "No nvidia-smi here.")
  say("Medians of up to %d rounds in which the sides took turns; all sides with fused optimizers, " ..
    "PyTorch's images channels-last. Rows in fp32 are without TF32 on all sides but where they name it; " ..
    "PyTorch's sides are not deterministic. MFU: 6 FLOP for each " ..
    "parameter and token and 12 x layers x width x T for attention, against %.0f TFLOP/s.", rounds,
      PEAK / 1e12)
  if #unmeasured > 0 then
    say("Left out, since %d seconds were over: %s.", seconds, table.concat(unmeasured, "; "))
  end
  for _, line in ipairs(notes) do say("Note: %s", (line:gsub("%s+", " "))) end
end

local function write(name, content)
  local f = assert(io.open(out .. "/" .. name, "w"))
  f:write(content, "\n")
  f:close()
end

-- Written after each row: a run that is stopped has what it measured.
local function report()
  page = {}
  say_steps()
  say_determinism()
  if next(kernels[1]) then say_kernels() end
  say_facts()
  write("bench-gpu.md", table.concat(page, "\n"))
  write("bench-gpu.jsonl", table.concat(lines, "\n"))
end

-- ---- run

local count, reason = core.device_count("cuda")
if device == "cuda" and count == 0 then error(reason, 0) end
os.execute(("mkdir -p '%s'"):format(out))

local COST = "single kernels"
local measured = 0
for i, row in ipairs(ROWS) do
  if row[1]:find(only) and (not smoke or row.smoke) then
    if left() < 0 then
      unmeasured[#unmeasured + 1] = row[1]
    else
      measure(row)
      measured = measured + 1
      report()
    end
  end
  if i == KERNELS_AFTER and COST:find(only) then
    if left() < 0 then
      unmeasured[#unmeasured + 1] = COST
    else
      measure_kernels()
      measured = measured + 1
      report()
    end
  end
end
if torch then torch:stop() end
if measured == 0 then error(("ONLY=%q matches no row; they are:\n%s"):format(only, (function()
  local names = { COST }
  for i, row in ipairs(ROWS) do names[i + 1] = row[1] end
  return table.concat(names, "\n")
end)()), 0) end
report()
print(table.concat(page, "\n"))
if failed then error("bench: some of our sides failed; the notes say why", 0) end
