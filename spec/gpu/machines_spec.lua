-- Ranks on GPUs of several machines: the group of the GPUs (kernels/cuda/runtime/nccl_group.cu) is
-- joined through host/core/dist/tcp.c.  On the emulated device the machines are two launches on
-- this one, and a stand-in joins them; with one real machine there is nothing to join.
local EVERY = require "spec.support.every_collective"
local device = require "spec.support.device"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"

local why
if device.kind ~= "emulated" or not device.name then why = "machines are emulated together with their devices"
elseif not pcall(ranks.ok, 1, "core.dist.join_device(0)") then
  why = "no stand-in for NCCL was built (it needs NVIDIA's header)" end

local ENV = { ACCEL_EMULATED_DEVICES = "2" }
local TRAIN = [[
  local accelerate = require "accelerate"
  local core = require "accelerate.core"
  local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
  accelerate.utils.set_seed(5)
  local accelerator = accelerate.Accelerator()
  assert(accelerate.PartialState().backend == "nccl" and accelerator.device == "cuda:" ..
    accelerator.local_process_index)
  local x, y = core.randn(64, 6), core.randn(64, 2)
  local model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  local loader = data.DataLoader(data.TensorDataset(x, y),
    { batch_size = 16 / accelerator.num_processes, shuffle = true })
  model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
  for _ = 1, 3 do
    for a, b in loader:iter() do
      accelerator:backward((model(a) - b):square():mean())
      optimizer:step()
      optimizer:zero_grad()
    end
  end
  local digits = {}
  for _, p in ipairs(model:parameters()) do
    for _, v in ipairs(p:detach():to("cpu"):reshape(-1):totable()) do
      digits[#digits + 1] = ("%.9g"):format(v)
    end
  end
  accelerator:print("[" .. table.concat(digits, " ") .. "]")
]]

describe("GPUs of several machines", function()
  if why then
    it("train as those of one", function() pending(why) end)
    return
  end
  after_each(processes.clean)

  it("train as those of one", function()
    local one = ranks.ok(2, TRAIN, { env = ENV }):match("%[.-%]")
    local two = machines.ok(TRAIN, { ranks = 2, env = { ACCEL_EMULATED_DEVICES = "1" }, seconds = 60 }):match(
      "%[.-%]")
    assert.is_truthy(one and two and #one > 500)
    assert.are.equal(one, two)
    local four = machines.ok(TRAIN, { ranks = 4, env = ENV, seconds = 60 }):match("%[.-%]")
    local a, b = {}, {}
    for v in one:gmatch("[-%d.e]+") do a[#a + 1] = tonumber(v) end
    for v in four:gmatch("[-%d.e]+") do b[#b + 1] = tonumber(v) end
    assert.are.equal(6 * 16 + 16 + 32 + 2, #a)
    for i = 1, #a do assert.is_true(math.abs(a[i] - b[i]) < 1e-5, i) end
  end)

  it("end when a rank of the other machine is gone", function()
    local ended = machines.run([[
      local core = require "accelerate.core"
      local t = core.ones(4, { device = "cuda:0" })
      core.dist.all_reduce(t)
      if core.dist.rank() == 1 then error("out of luck") end
      for _ = 1, 3 do core.dist.all_reduce(t) end
      t:sum():item()
    ]], { ranks = 2, env = { ACCEL_EMULATED_DEVICES = "1" }, seconds = 30 })
    assert.matches("rank 1 %(machine 1%) failed: [^\n]*out of luck", ended[0].err)
    assert.are.equal(1, ended[0].status)
    assert.are.equal(1, ended[1].status)
  end)

  local GROUPS = [[
    local accelerate, core = require "accelerate", require "accelerate.core"
    local dist, tensor = require "accelerate.distributed", require "accelerate.tensor"
    local rank, n, gpu = dist.get_rank(), 4, accelerate.PartialState().device
    local mesh = dist.mesh { dp_replicate = 2, dp_shard = 2 }
  ]]

  it("carry every collective in groups of one machine and of both", function()
    local out = machines.ok(GROUPS .. EVERY .. [[
      where = gpu
      every(mesh.dp_shard, 3)
      every(mesh.dp_replicate, 5)
      local g = dist.new_group { 0, 1, 3 }
      if g.rank >= 0 then every(g, 4) end
      every(dist.world, 2)
      io.write("done " .. rank .. "\n")
    ]], { ranks = 4, env = ENV, seconds = 60 })
    for r = 0, 3 do assert.is_truthy(out:find("done " .. r .. "\n", 1, true), out) end
  end)

  it("are told at once that they differ in a group of one machine", function()
    local ended = machines.run(GROUPS .. [[
      local x = tensor.ones(4):to(gpu)
      if rank == 3 then x = x:narrow(1, 1, 3) end
      dist.all_reduce(x, { group = mesh.dp_shard })
      x:sum():item()
      dist.barrier()
    ]], { ranks = 4, env = ENV, seconds = 30 })
    assert.matches("rank 2 calls all_reduce%(float32, 4 elements, sum, on the GPU%) in dp_shard%[2,3%] at " ..
      "[^\n]*; rank 3 calls all_reduce%(float32, 3 elements, sum, on the GPU%) in dp_shard%[2,3%]",
      ended[1].err)
    assert.are.equal(1, ended[0].status)
  end)
end)
