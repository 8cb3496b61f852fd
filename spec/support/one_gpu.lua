-- What several ranks do with their GPUs, on one GPU that they share (ACCEL_SHARE_GPU=1): in a
-- bundle ./test-ranks-on-one-gpu, else spec/support/on_gpu ranks-on-one-gpu.
--
--   accel-run spec/support/one_gpu.lua
--
-- Environment:
--   ACCEL_TEST_DEVICE  cuda; emulated: the same on a machine without a GPU
--   RANKS_SECONDS      no part is begun after so many seconds (default 170), and one that
--                      takes more than what is left of them and eight is stopped
--   ONLY               a Lua pattern: only the parts whose name it matches
--
-- Each part is a run of its own, and a line of what is printed: whether what it checks holds, its
-- time, its name; below a part that failed its output.  The parts stand in the order of what they
-- are worth, so that what a short time leaves out matters least.  The status is 1 where one failed.
local EVERY = require "spec.support.every_collective"
local device = require "spec.support.device"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local emulated = device.kind == "emulated"
local limit, only = tonumber(os.getenv "RANKS_SECONDS" or 170), os.getenv "ONLY" or ""
local began = processes.now()

local function stop(pattern, ...)
  io.stderr:write("one_gpu: ", pattern:format(...), "\n")
  os.exit(1)
end
if not limit then stop("RANKS_SECONDS must be a number of seconds, got %q", os.getenv "RANKS_SECONDS") end
if arg[1] then stop("no arguments are taken, got %q; ONLY=PATTERN chooses parts", arg[1]) end
-- what a GPU does in a moment takes the emulated one minutes
local STEPS, WIDTH, LENGTH = emulated and 3 or 50, emulated and 16 or 64, emulated and 8 or 32

local HEAD = [[
local accelerate, core = require "accelerate", require "accelerate.core"
local dist, tensor = require "accelerate.distributed", require "accelerate.tensor"
local nn, optim, F = require "accelerate.nn", require "accelerate.optim", require "accelerate.nn.functional"
local state = require "accelerate.state"
local rank, n = dist.get_rank(), dist.get_world_size()
local gpu = accelerate.PartialState().device
require("ffi").cdef "int usleep(unsigned); int getpid(void); int kill(int, int);"
local C = require("ffi").C
local function sleep(ms) for _ = 1, ms do C.usleep(1000) end end
]]

-- train(opts): steps of a small GPT, each rank on its part of 8 rows; the losses and a number of
-- each parameter.
local TRAIN = ("local STEPS, WIDTH, LENGTH = %d, %d, %d\n"):format(STEPS, WIDTH, LENGTH) .. [[
local Block = nn.class("Block")
function Block:init(width)
  self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
  self.norm2 = nn.LayerNorm(width)
  self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end
function Block:forward(x)
  local q, k, v = self.qkv(self.norm(x)):split_heads(4)
  local seen = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  x = x + self.out(seen:transpose(2, 3):reshape(x.shape))
  return x + self.down(F.gelu(self.up(self.norm2(x))))
end
local GPT = nn.class("GPT")
function GPT:init()
  self.tokens, self.places = nn.Embedding(64, WIDTH), nn.Embedding(LENGTH, WIDTH)
  self.blocks, self.norm = nn.Sequential(Block(WIDTH), Block(WIDTH)), nn.LayerNorm(WIDTH)
end
function GPT:forward(ids)
  local x = self.tokens(ids) + self.places.weight:narrow(1, 1, ids:size(2))
  return F.linear(self.norm(self.blocks(x)), self.tokens.weight)
end
local function train(opts)
  opts = opts or {}
  state.reset()
  core.manual_seed(4)
  local accelerator = accelerate.Accelerator { fsdp_plugin = opts.fsdp and
      accelerate.FullyShardedDataParallelPlugin(opts.fsdp) or nil, mixed_precision = opts.precision,
    kwargs_handlers = opts.ddp and { accelerate.DistributedDataParallelKwargs(opts.ddp) } or nil }
  local model = GPT()
  local optimizer
  model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 }))
  core.manual_seed(9)
  local function step(ids)
    local logits = model(ids:narrow(2, 1, LENGTH))
    local loss = F.cross_entropy(logits:reshape(-1, 64), ids:narrow(2, 2, LENGTH):reshape(-1))
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    return accelerate.utils.reduce(loss:detach(), "mean")
  end
  if opts.captured then step = accelerate.utils.capture(step, { warmup = 2 }) end
  local all, rows = {}, 8 / n
  for k = 1, opts.steps or STEPS do
    local ids = core.randint(0, 64, { 8, LENGTH + 1 }):narrow(1, rank * rows + 1, rows)
    all[k] = step(ids:to(accelerator.device)):item()
  end
  if opts.fsdp then return all, step end
  local values, names = accelerator:get_state_dict(model), {}
  for name in pairs(values) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do all[#all + 1] = values[name]:double():square():sum():item() end
  return all
end
local function off(a, b)
  local most = 0
  for k = 1, math.max(#a, #b) do most = math.max(most, math.abs(a[k] - b[k])) end
  return most
end
]]

local NO_TIME = "left out, no time"

local function run(ranks, script, opts)
  opts = opts or {}
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(HEAD, script)
  file:close()
  local words = { "--num_processes", tostring(ranks), "--num_cpu_threads_per_process", "1" }
  for _, word in ipairs(opts.launch or { "--timeout", "60" }) do words[#words + 1] = word end
  words[#words + 1] = path
  local seconds, left = opts.seconds or 60, math.max(1, math.ceil(began + limit + 8 - processes.now()))
  local ok, status, out, err = pcall(host.run, words, { seconds = math.min(seconds, left),
    env = { ACCEL_SHARE_GPU = "1", ACCEL_EMULATED_DEVICES = "1",
      ACCEL_EMULATED_QUEUE = opts.queue or "0" } })
  os.remove(path)
  if not ok and left < seconds then error(NO_TIME, 0) end
  if not ok then return 124, "", tostring(status) end
  return status, out, err
end

-- A part that ends well, with "done" from each rank.
local function works(ranks, script, opts)
  local status, out, err = run(ranks, script .. "\nio.write('done ', rank, '\\n')\n", opts)
  for r = 0, ranks - 1 do
    if status ~= 0 or not out:find("done " .. r .. "\n", 1, true) then
      error(("status %d\n%s%s"):format(status, out, err), 0)
    end
  end
  return out
end

-- One that fails within so many seconds, with what `pattern` matches.
local function fails(ranks, script, pattern, seconds, opts)
  local since = processes.now()
  local status, out, err = run(ranks, script, opts)
  local took = processes.now() - since
  if status == 0 or not err:match(pattern) then
    error(("status %d; expected an error that matches %s\n%s%s"):format(status, pattern, out, err), 0)
  end
  if took > seconds * host.stretch() then error(("it took %.1f s\n%s"):format(took, err), 0) end
end

local PARTS = {
  { "every collective of 2 ranks, in the world and in divisions of it", function()
    works(2, EVERY .. [[
      where = gpu
      every(dist.world, 3)
      every(dist.new_group { 0, 1 }, 5)
      every(dist.mesh { dp_replicate = 2 }.dp_replicate, 1000)
      every(dist.mesh { dp_shard = 2, tp = 1 }.tp, 2)
    ]])
  end },
  { "50 data-parallel steps of a GPT: one rank's to 1e-5, twice the same bits, overlap on and off", function()
    local SHOW = "for _, v in ipairs(%s) do io.write(('number %%.17g\\n'):format(v)) end\n"
    local function numbers(out)
      local list = {}
      for text in out:gmatch "number (%S+)" do list[#list + 1] = tonumber(text) end
      return list
    end
    local one = numbers(works(1, TRAIN .. SHOW:format "train()")) -- all 8 rows
    local two = numbers(works(2, TRAIN .. [[
      local a, b = train { ddp = { bucket_cap_mb = 0.1 } }, train { ddp = { bucket_cap_mb = 0.1 } }
      assert(off(a, b) == 0, "a second run differs by " .. off(a, b))
      local late = train { ddp = { bucket_cap_mb = 1000 } }
      assert(off(a, late) < 1e-5, "without overlap it differs by " .. off(a, late))
      if rank == 0 then
    ]] .. SHOW:format "a" .. "end\n"))
    assert(#one == #two and #one > STEPS + 20, #one .. " and " .. #two .. " numbers")
    for k = 1, #one do
      local d = math.abs(one[k] - two[k]) / math.max(1, math.abs(one[k]))
      assert(d < 1e-5, ("number %d: %.9g on one rank, %.9g on two"):format(k, one[k], two[k]))
    end
  end },
  { "4 ranks: every collective on the groups of a 2 x 2 mesh, at the same time and in turns", function()
    works(4, EVERY .. [[
      where = gpu
      local mesh = dist.mesh { dp_replicate = 2, tp = 2 }
      every(mesh.tp, 3)
      every(mesh.dp_replicate, 5)
      local x = tensor.ones(100):to(gpu)
      for _ = 1, mesh.coordinate[1] == 0 and 20 or 5 do
        dist.all_reduce(x, { group = mesh.tp, op = "mean" })
      end
      dist.all_reduce(x, { group = mesh.dp_replicate })
      assert(x:sum():item() == 200)
    ]])
  end },
  { "reductions over the world and a group inside a captured step", function()
    works(2, [[
      local g = dist.new_group { 0, 1 }
      local w = (tensor.arange(16):float():reshape(4, 4) / 10):to(gpu)
      local function step(x)
        local y = x:matmul(w)
        dist.all_reduce(y, { group = g })
        y = y * 0.5
        dist.all_reduce(y, { op = "mean" })
        return y + dist.all_gather(y:narrow(1, 1, 1), { group = g }):sum()
      end
      local function input(k) return (tensor.arange(8):float():reshape(2, 4) * (rank + k)):to(gpu) end
      local recorded = accelerate.utils.capture(step)
      for k = 1, 8 do
        local want, got = step(input(k)):cpu(), recorded(input(k)):cpu()
        assert(want:eq(got):all():item(), "call " .. k)
      end
      assert(recorded:stats().replayed > 0)
    ]])
  end },
  { "a mismatch is told at once, with both lines", function()
    fails(2, [[
      local x = tensor.ones(4):to(gpu)
      dist.all_reduce(x)
      if rank == 0 then dist.all_reduce(x) else dist.all_reduce(x:narrow(1, 1, 3)) end
      x:sum():item()
    ]], "rank 0 calls all_reduce%(float32, 4 elements, sum, on the GPU%).*rank 1 calls " ..
      "all_reduce%(float32, 3",
      20, { launch = { "--timeout", "600" } })
  end },
  { "a rank that is killed ends the run", function()
    fails(2, [[
      local x = tensor.ones(4):to(gpu)
      dist.all_reduce(x)
      x:sum():item()
      if rank == 1 then C.kill(C.getpid(), 9) end
      for _ = 1, 1e6 do dist.all_reduce(x, { op = "mean" }) x:sum():item() end
    ]], "rank 1 of 2 was killed by SIGKILL", 20, { launch = { "--timeout", "600" } })
  end },
  { "a rank that is stopped: the watchdog aborts what waits for it, though the launches block", function()
    fails(2, [[
      local x = tensor.ones(4):to(gpu)
      dist.all_reduce(x)
      x:sum():item()
      dist.barrier()
      if rank == 1 then C.kill(C.getpid(), 19) end
      dist.all_reduce(x)
      while true do x = x * 1 end
    ]], "all_reduce%(float32, 4 elements, sum, on the GPU%) at [^\n]*, has waited %d+%.%d s for rank 1, " ..
      "which last called", 30, { launch = { "--timeout", "4" }, queue = emulated and "40" or nil })
  end },
  { "communication hooks", function()
    works(2, TRAIN .. [[
      local plain = train { steps = 3 }
      for _, entry in ipairs { { "fp16", 2e-2 }, { "bf16", 1e-1 }, { "power_sgd", 1 } } do
        local hook = entry[1]
        local hooked = train { steps = 3, ddp = { comm_hook = hook } }
        local d = math.abs(hooked[3] - plain[3])
        assert(d < entry[2], ("%s: the last loss is off by %g"):format(hook, d))
      end
    ]])
  end },
  { "a layer that is divided over the ranks equals one that is not", function()
    works(2, [[
      tensor.manual_seed(1)
      local x, w1, w2 = tensor.randn(3, 4):to(gpu), tensor.randn(8, 4):to(gpu), tensor.randn(4, 8):to(gpu)
      local whole = { w1:clone():requires_grad_(), w2:clone():requires_grad_() }
      F.linear(F.relu(F.linear(x, whole[1])), whole[2]):square():sum():backward()
      local g = dist.new_group { 0, 1 }
      local a = w1:narrow(1, 4 * rank + 1, 4):clone():requires_grad_()
      local b = w2:narrow(2, 4 * rank + 1, 4):clone():requires_grad_()
      local y = dist.functional.all_reduce(F.linear(F.relu(F.linear(x, a)), b), { group = g })
      ;(y:square():sum() / n):backward()
      assert((a.grad - whole[1].grad:narrow(1, 4 * rank + 1, 4)):abs():max():item() < 1e-3)
      assert((b.grad - whole[2].grad:narrow(2, 4 * rank + 1, 4)):abs():max():item() < 1e-3)
    ]])
  end },
  { "sharded steps equal plain ones to 1e-5, with values, gradients and states in host memory too", function()
    works(2, TRAIN .. [[
      local plain = train { steps = 3 }
      for _, strategy in ipairs { "FULL_SHARD", "SHARD_GRAD_OP" } do
        for _, away in ipairs { false, true } do
          local sharded = train { steps = 3, fsdp = { sharding_strategy = strategy, cpu_offload = away } }
          for k = 1, 3 do
            local d = math.abs(plain[k] - sharded[k])
            assert(d < 1e-5, ("%s, offload %s: loss %d is off by %g"):format(strategy, away, k, d))
          end
        end
      end
    ]])
  end },
  { "captured sharded steps have the bits of eager ones", function()
    works(2, TRAIN .. [[
      for _, strategy in ipairs { "FULL_SHARD", "SHARD_GRAD_OP" } do
        local eager = train { steps = 5, fsdp = { sharding_strategy = strategy } }
        local losses, recorded = train { steps = 5, fsdp = { sharding_strategy = strategy }, captured = true }
        assert(off(eager, losses) == 0, ("%s: off by %g"):format(strategy, off(eager, losses)))
        assert(recorded:stats().replayed > 0, tostring(recorded))
      end
    ]])
  end },
  { "steps in fp8, plain and sharded, stay beside those in bfloat16", function()
    works(2, TRAIN .. [[
      local plain = train { steps = 3, precision = "bf16" }
      for _, fsdp in ipairs { false, { sharding_strategy = "FULL_SHARD" } } do
        local eight, most = train { steps = 3, precision = "fp8", fsdp = fsdp or nil }, 0
        for k = 1, 3 do
          local d = math.abs(eight[k] / plain[k] - 1)
          assert(d < 0.05, ("%s: loss %d is off by %g"):format(fsdp and "sharded" or "plain", k, d))
          most = math.max(most, d)
        end
        assert(most > 0, "nothing was computed in eight bits")
      end
    ]])
  end },
  { "matrices in every encoding (GGUF, nf4, int8, fp8 and others) are decoded and multiplied as on the CPU",
    function()
      works(1, [[
        local encoded = require "spec.support.encoded"
        local decode = require("accelerate.quantisation.encodings").decode
        for _, name in ipairs(encoded.names()) do
          local e = encoded.matrix(name, 1024)
          local d = encoded.moved(e, gpu)
          assert(decode(e, "float32"):equal(decode(d, "float32"):cpu()), name .. ": its numbers")
          for _, m in ipairs { 1, 5, 40 } do
            local x = tensor.randn(m, 1024)
            local want, x_there = encoded.product(x, e), x:to(gpu):requires_grad_()
            local got = encoded.product(x_there, d)
            local off = (got:detach():cpu() - want):abs():max():item() / want:abs():max():item()
            assert(off < 1e-5, ("%s: products of %d rows are off by %g"):format(name, m, off))
            got:sum():backward()
            want = decode(e, "float32"):sum(1)
            off = (x_there.grad:cpu() - want):abs():max():item() / want:abs():max():item()
            assert(off < 1e-5, ("%s: gradients of %d rows are off by %g"):format(name, m, off))
          end
        end
      ]])
    end },
}

local failed, ran, found = 0, 0, false
if not device.name then stop("no GPU here: %s", device.reason) end
for _, part in ipairs(PARTS) do
  local name, body = part[1], part[2]
  found = found or name:find(only)
  if name:find(only) and processes.now() - began < limit then
    local since = processes.now()
    local ok, message = pcall(body)
    if not ok and message == NO_TIME then
      io.write(("%s  %s\n"):format(NO_TIME, name))
    else
      io.write(("%-6s %6.1f s  %s\n"):format(ok and "ok" or "FAILED", processes.now() - since, name))
      if not ok then io.write("    ", tostring(message):sub(1, 4000):gsub("\n", "\n    "), "\n") end
      ran, failed = ran + 1, failed + (ok and 0 or 1)
    end
    io.flush()
  elseif name:find(only) then
    io.write(("%s  %s\n"):format(NO_TIME, name))
  end
end
if not found then
  local names = {}
  for k, part in ipairs(PARTS) do names[k] = part[1] end
  stop("ONLY=%q matches no part; they are:\n%s", only, table.concat(names, "\n"))
end
io.write(("%d of %d parts ran, %d failed, %.0f s\n"):format(ran, #PARTS, failed, processes.now() - began))
os.exit(failed > 0 and 1 or 0)
