-- The collectives between ranks, in the manner of NVIDIA's nccl-tests: every element of each result
-- is checked, and a table has the time, the algorithm bandwidth and the bus bandwidth.
--
--   accel-run bench/collectives.lua                            a rank for each GPU
--   accel-run --cpu --num_processes 2 bench/collectives.lua    ranks on the CPU
--
--   --collectives LIST   of all_reduce, all_gather, reduce_scatter, broadcast, gather (default:
--                        all)
--   --types LIST         of float32, float64, float16, bfloat16, int64, int32, uint8, or all
--                        (default float32,bfloat16,float16,int64)
--   --op sum|max|min     of all_reduce and reduce_scatter (default sum)
--   --min 8 --max 256M --factor 4    sizes in bytes
--   --iters 20 --warmup 5            samples; the median of those after the warm-up counts
--   --calls N            collectives in a sample, which are queued and waited for once (default: on
--                        GPUs as many as move 16 MB, at most 20; on the CPU 1)
--
-- Sizes and bandwidths are those of nccl-tests (doc/PERFORMANCE.md there).  The size is that of the
-- whole: of all parts together where each rank has a part.  The algorithm bandwidth is the size
-- over the time, which is the mean of the ranks' medians.  The bus bandwidth is that times 2(n-1)/n
-- for all_reduce, (n-1)/n for all_gather, reduce_scatter and gather, 1 for broadcast: what a link
-- carries, to be compared with its speed whatever the number of ranks n.  all_reduce and broadcast
-- work in place, the others return a new tensor.  gather is NCCL's sends and receives.
--
-- Each collective is checked before it is timed, with root 0, and afterwards, with the last rank as
-- root and other numbers.  The counts of wrong elements travel through the CPU's memory.  A wrong
-- one ends the run with status 1.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local dist = core.dist
local rank, ranks = dist.rank(), dist.world_size()
local device = accelerate.PartialState().device
local on_gpu = device ~= "cpu"

-- place: where the result is.  parts: each rank has one part of as many as there are ranks: "out"
-- of the result, "in" of the input.
local COLLECTIVES = {
  all_reduce = { place = "in", reduces = true, factor = 2 * (ranks - 1) / ranks,
    call = function(x, op) return dist.all_reduce(x, op) end },
  all_gather = { place = "out", parts = "out", factor = (ranks - 1) / ranks,
    call = function(x) return dist.all_gather(x) end },
  reduce_scatter = { place = "out", parts = "in", reduces = true, factor = (ranks - 1) / ranks,
    call = function(x, op) return dist.reduce_scatter(x, op) end },
  broadcast = { place = "in", root = true, factor = 1,
    call = function(x, _, root) return dist.broadcast(x, root) end },
  gather = { place = "out", parts = "out", root = true, factor = (ranks - 1) / ranks,
    call = function(x, _, root) return dist.gather(x, root) end },
}
local ORDER = { "all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather" }
local BYTES = { float32 = 4, float64 = 8, float16 = 2, bfloat16 = 2, int64 = 8, int32 = 4, uint8 = 1 }
local TYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8" }
local OPS = { "sum", "max", "min" }
local QUEUED_BYTES, QUEUED_CALLS = 2 ^ 24, 20

-- ---- options

local function refuse(...) error("collectives: " .. string.format(...), 0) end

local function among(name, list, word)
  for _, each in ipairs(list) do if each == word then return word end end
  refuse("--%s: expected one of %s; got %s", name, table.concat(list, ", "), word)
end

local function list_of(name, list, text)
  if text == "all" then return list end
  local found = {}
  for word in text:gmatch "[^,]+" do found[#found + 1] = among(name, list, word) end
  return found
end

local UNITS = { [""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30 }
local function number_of(name, text, least)
  local digits, unit = text:match "^(%d+)([KMG]?)$"
  local n = digits and tonumber(digits) * UNITS[unit]
  if not n or n < least then refuse("--%s: expected a number, %d or more; got %s", name, least, text) end
  return n
end

local function options_of(words)
  local given = { collectives = "all", types = "float32,bfloat16,float16,int64", op = "sum", min = "8",
    max = "256M", factor = "4", iters = "20", warmup = "5", calls = "0" }
  for i = 1, #words, 2 do
    local name = words[i]:match "^%-%-(%a+)$"
    if not given[name or ""] then refuse("unknown option %s", words[i]) end
    given[name] = words[i + 1] or refuse("%s needs a value", words[i])
  end
  local o = { collectives = list_of("collectives", ORDER, given.collectives),
    types = list_of("types", TYPES, given.types), op = among("op", OPS, given.op) }
  for name, least in pairs { min = 1, max = 1, factor = 2, iters = 1, warmup = 0, calls = 0 } do
    o[name] = number_of(name, given[name], least)
  end
  return o
end

-- ---- numbers

-- Element i of rank r is base[i + r * OF_RANK + draw * OF_DRAW], where base is periodic: squares
-- modulo a prime, which no shift by a size of chunks maps onto themselves.  What ranks reduce to
-- has the same period.  Sums are integers below 256, which every type has exactly, in every order.
local PERIOD, OF_RANK, OF_DRAW = 65521, 9973, 1009
local SCALE = { int64 = 2 ^ 32 + 1, int32 = 2 ^ 16 + 1 } -- so that their upper halves count too

local function twice(x) return tensor.cat({ x, x }, 1) end

local base = (function()
  local x = tensor.arange(0, PERIOD, { dtype = "int64" })
  return twice((x * (x + 31)):remainder(PERIOD):remainder(math.max(2, math.floor(256 / ranks))))
end)()

local function reduced(op)
  local total
  for r = 0, ranks - 1 do
    local x = base:narrow(1, r * OF_RANK % PERIOD + 1, PERIOD)
    if not total then total = x
    else total = op == "sum" and total + x or op == "max" and total:maximum(x) or total:minimum(x) end
  end
  return twice(total)
end

-- Calls fn(part, row) for the parts of x that hold whole periods, as (periods, PERIOD), and for
-- what is left; row is what each begins with, from element `from` of `numbers`.
local function by_period(x, numbers, from, fn)
  local n = x:numel()
  local whole = math.floor(n / PERIOD)
  local row = numbers:narrow(1, from % PERIOD + 1, math.min(n, PERIOD)):to(device)
  if whole > 0 then fn(x:narrow(1, 1, whole * PERIOD):view(whole, PERIOD), row, 0) end
  local left = n - whole * PERIOD
  if left > 0 then fn(x:narrow(1, whole * PERIOD + 1, left), row:narrow(1, 1, left), whole * PERIOD) end
end

local function fill(x, numbers, from)
  by_period(x, numbers, from, function(part, row) part:copy_(row) end)
end

-- How many elements of x are not those of `numbers` from `from` on, and the first of them in words;
-- `before`: elements of the result in front of x.
local function compare(x, numbers, from, before)
  local wrong, first = 0, nil
  by_period(x, numbers, from, function(part, row, at)
    local differs = part:ne(row)
    local n = differs:sum():item()
    if n > 0 and not first then
      local i = differs:to("cpu"):reshape(-1):to("uint8"):argmax():item()
      first = ("element %d is %s, must be %s"):format(before + at + i,
        tostring(part:reshape(-1):narrow(1, i + 1, 1):item()),
        tostring(row:narrow(1, i % row:numel() + 1, 1):item()))
    end
    wrong = wrong + n
  end)
  return wrong, first
end

-- ---- a row: one collective, type and size

local Row = {}
Row.__index = Row

local function row_of(name, dtype, bytes, options, numbers)
  local c = COLLECTIVES[name]
  local whole = math.floor(bytes / BYTES[dtype])
  local count = c.parts and math.max(1, math.floor(whole / ranks)) or math.max(1, whole)
  local self = setmetatable({ name = name, dtype = dtype, collective = c, count = count,
    op = c.reduces and options.op or "-", numbers = numbers }, Row)
  self.bytes = count * (c.parts and ranks or 1) * BYTES[dtype]
  self.calls = options.calls > 0 and options.calls
    or on_gpu and math.max(1, math.min(QUEUED_CALLS, math.floor(QUEUED_BYTES / self.bytes))) or 1
  self.input = tensor.empty(count * (c.parts == "in" and ranks or 1), { dtype = dtype, device = device })
  return self
end

function Row:call(root) return self.collective.call(self.input, self.op, root) end

-- Runs the collective on new numbers and returns how many elements are wrong on this rank, and the
-- first of them.
function Row:check(draw, root)
  local c, count, shift = self.collective, self.count, draw * OF_DRAW
  fill(self.input, self.numbers.base, rank * OF_RANK + shift)
  local out = self:call(root)
  if not out then return 0 end
  if c.reduces then
    return compare(out, self.numbers.reduced, shift + (c.parts and rank * count or 0), 0)
  end
  if not c.parts then return compare(out, self.numbers.base, root * OF_RANK + shift, 0) end
  local wrong, first = 0, nil
  for r = 0, ranks - 1 do
    local n, its_first = compare(out:narrow(1, r * count + 1, count), self.numbers.base,
      r * OF_RANK + shift, r * count)
    wrong, first = wrong + n, first or its_first
  end
  return wrong, first
end

-- Seconds of one collective: the median of the samples.
function Row:time(iters, warmup)
  local times = {}
  local function sample() for _ = 1, self.calls do self:call(0) end end
  for i = 1, warmup + iters do
    dist.barrier()
    local began = common.now()
    tensor.scope(sample)
    if on_gpu then core.synchronize(device) end
    if i > warmup then times[#times + 1] = (common.now() - began) / self.calls end
  end
  return common.median(times)
end

-- ---- the table

-- A run that is stopped has printed what it measured.
local function say(...)
  if rank > 0 then return end
  print(string.format(...))
  io.stdout:flush()
end

local LINE = "%-15s %11s %11s %-9s %-4s %-5s %11s %8s %8s %7s"

local function measure(name, dtype, bytes, options, numbers)
  local row = row_of(name, dtype, bytes, options, numbers)
  local wrong, first = row:check(0, 0)
  local seconds = row:time(options.iters, options.warmup)
  local later, later_first = row:check(1, ranks - 1)
  wrong, first = wrong + later, first or later_first
  local all, mean, notes = 0, 0, {}
  for r, text in ipairs(dist.all_gather_bytes(("%.17g %d %s"):format(seconds, wrong, first or ""))) do
    local time, n, what = text:match "^(%S+) (%d+) (.*)$"
    mean, all = mean + time / ranks, all + n
    if tonumber(n) > 0 then notes[#notes + 1] = ("rank %d: %d wrong, %s"):format(r - 1, n, what) end
  end
  local bandwidth = row.bytes / mean / 1e9
  local bus = bandwidth * row.collective.factor
  say(LINE, name, row.bytes, row.count, dtype, row.op, row.collective.place, ("%.2f"):format(mean * 1e6),
    ("%.2f"):format(bandwidth), ("%.2f"):format(bus), all)
  for _, note in ipairs(notes) do say("#   %s", note) end
  return all, bus
end

local function join_gpus()
  if not on_gpu then return end
  if ranks == 1 then dist.join_device(tonumber(device:match ":(%d+)$" or 0)) end
  dist.all_reduce(tensor.zeros(1, { device = device }), "sum")
end

local function run(options)
  if ranks > 255 then refuse("%d ranks: sums of more than 255 are rounded in bfloat16", ranks) end
  if options.min > options.max then refuse("--min %d is more than --max %d", options.min, options.max) end
  join_gpus()
  say("# %d rank%s on %s, %s; medians of %d samples after %d", ranks, ranks == 1 and "" or "s",
    core.backend_info(device).description, on_gpu and dist.device_group() or dist.transport(),
    options.iters, options.warmup)
  say("# " .. LINE:gsub("15", "13", 1), "collective", "size, B", "count", "type", "op", "place", "time, us",
    "algbw", "busbw", "wrong")
  local ops, wrong, bus, rows = reduced(options.op), 0, 0, 0
  for _, name in ipairs(options.collectives) do
    for _, dtype in ipairs(options.types) do
      local scale, bytes = SCALE[dtype] or 1, options.min
      local numbers = { base = (base * scale):to(dtype), reduced = (ops * scale):to(dtype) }
      while bytes <= options.max do
        local n, bandwidth = measure(name, dtype, bytes, options, numbers)
        wrong, bus, rows, bytes = wrong + n, bus + bandwidth, rows + 1, bytes * options.factor
      end
    end
  end
  say("# bandwidths in GB/s (1e9 bytes a second); bus bandwidth on average: %.2f", bus / rows)
  say("# wrong elements: %d in %d rows", wrong, rows)
  if wrong > 0 and rank == 0 then refuse("%d wrong elements", wrong) end
end

run(options_of(arg))
