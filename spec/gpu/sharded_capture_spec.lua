-- Captured steps of sharded models: a recording gathers values and reduces gradients in memory of
-- its own; see host/core/params/home_capture.c and support/gpu_ranks.lua.
local gpu_ranks = require "spec.support.gpu_ranks"
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

-- same(name, plan, opts, how): trains eagerly, and as `how` says, and compares the bits.
local SAME = programs.TRAIN .. [[
  local function check(ok, message) if not ok then error(message or "a check failed", 2) end end
  local function with(opts, more)
    local all = { steps = 7 }
    for _, t in ipairs { opts or {}, more } do
      for k, v in pairs(t) do all[k] = v end
    end
    return all
  end
  local function same(name, plan, opts, how)
    how = how or { captured = true }
    local a = train(name, plan, with(opts, {}))
    local b, model, optimizer, accelerator, pass = train(name, plan, with(opts, how))
    for i = 1, math.max(#a, #b) do
      check(a[i] == b[i], ("%s under %s, number %d: %s and %s"):format(name, plan, i, a[i], b[i]))
    end
    return pass, model, accelerator, optimizer
  end
]]

describe("a captured step of a sharded model", function()
  if gpu_ranks.why or gpu_ranks.most < 2 then
    it("gathers and reduces", function() pending(gpu_ranks.why or "needs 2 GPUs") end)
    return
  end

  it("has the bits of eager steps under each strategy", function()
    assert(gpu_ranks.on(2, SAME .. [[
      for _, plan in ipairs { "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD" } do
        local stats = same("gpt", plan):stats()
        check(stats.recorded == 1 and stats.replayed == 3, plan)
      end
      same("net", "FULL_SHARD", { value = 0.01 })
    ]]))
  end)

  it("has them where values stay until backward, and where units are computed again", function()
    assert(gpu_ranks.on(2, SAME .. [[
      same("gpt", "ZeRO-3", { reshard = false })
      same("gpt", "ZeRO-3", { recompute = true })
    ]]))
  end)

  it("has them in half types, with the loss scale, and in windows of several batches", function()
    assert(gpu_ranks.on(2, SAME .. [[
      same("gpt", "ZeRO-3", { precision = "bf16" })
      same("gpt", "ZeRO-2", { precision = "fp16", accumulate = 2 })
    ]]))
  end)

  it("has them on three ranks, and over copies of the model on four", function()
    if gpu_ranks.most < 4 then return pending("needs 4 GPUs") end
    assert(gpu_ranks.on(3, SAME .. [[same("gpt", "FULL_SHARD")]]))
    assert(gpu_ranks.on(4, SAME .. [[same("gpt", "HYBRID_SHARD", { replicate = 2 })]]))
  end)

  it("is compared with the eager step on request", function()
    assert(gpu_ranks.on(2, SAME .. [[
      local pass = same("gpt", "ZeRO-3", { accumulate = 2 }, { captured = true, verify = 2 })
      check(pass:stats().verified > 0)
    ]]))
  end)

  it("is named by parameter where it differs from the eager step", function()
    local _, _, err = ranks.run(2, SAME .. [[
      local _, model, optimizer, accelerator = train("gpt", "ZeRO-3", { steps = 1 })
      local factor, x = 1, core.randint(0, 19, { 6, 6 }):to(accelerator.device)
      local step = accelerate.utils.capture(function(ids)
        core.no_grad(function()
          model.h[2].up.weight:mul_(factor)
          model(ids)
        end)
        return ids * 1
      end, { warmup = 1, verify = 1 })
      for k = 1, 3 do
        factor = k == 3 and 0.5 or 1
        step(x)
      end
    ]], { env = gpu_ranks.env(), seconds = 120 })
    assert.matches("verify: parameter 'h.1.up.weight' differs between the replay and the eager step", err)
  end)

  it("goes on from a state that is loaded between replays", function()
    assert(gpu_ranks.on(2, SAME .. [[
      local folder = { rank == 0 and os.tmpname() }
      accelerate.utils.broadcast_object_list(folder)
      folder = folder[1] .. ".d"
      local function numbers(captured)
        local _, _, _, accelerator, pass = train("gpt", "ZeRO-3", { steps = 5, captured = captured,
          optimizer = "Adam", options = { lr = 0.01 } })
        core.manual_seed(7)
        local x, list = core.randint(0, 19, { 4, 6 }):to(accelerator.device), {}
        local function some()
          for _ = 1, 5 do list[#list + 1] = pass(x):item() end
        end
        accelerator:save_state(folder)
        some()
        accelerator:load_state(folder)
        some()
        return list, pass
      end
      local a = numbers(false)
      local b, pass = numbers(true)
      for i = 1, #a do check(a[i] == b[i], ("loss %d: %s and %s"):format(i, a[i], b[i])) end
      for i = 1, 5 do check(b[i] == b[5 + i], "another way after load_state") end
      check(pass:stats().replayed > 3, tostring(pass))
      accelerate.PartialState():wait_for_everyone()
      if rank == 0 then require("accelerate.utils.fs").remove_tree(folder) os.remove(folder:sub(1, -3)) end
    ]]))
  end)

  it("goes on after whole values were edited", function()
    assert(gpu_ranks.on(2, SAME .. [[
      local function numbers(captured)
        local _, model, _, accelerator, pass = train("gpt", "ZeRO-3", { steps = 5, captured = captured })
        core.manual_seed(7)
        local x, list = core.randint(0, 19, { 4, 6 }):to(accelerator.device), {}
        local function edit()
          for _, p in ipairs(model:parameters()) do core.no_grad(function() p:mul_(0.9) end) end
        end
        for k = 1, 4 do
          list[k] = pass(x):item()
          if k == 2 then accelerate.utils.summon_full_params(model, { writeback = true }, edit) end
          if k == 3 then model(x) end -- values that nobody gives back before the next step
        end
        return list
      end
      local a, b = numbers(false), numbers(true)
      for i = 1, #a do check(a[i] == b[i], ("loss %d: %s and %s"):format(i, a[i], b[i])) end
    ]]))
  end)

  it("is each pass of a model with dynamo_backend = 'cudagraphs'", function()
    assert(gpu_ranks.on(2, SAME .. [[
      local captured = require "accelerate.capture.model"
      for _, row in ipairs { { "ZeRO-3", { accumulate = 2, reshard = false } }, { "ZeRO-2" } } do
        local _, model = same("gpt", row[1], row[2], { backend = "cudagraphs" })
        local stats = captured.stats(model)
        check(stats.recorded >= 1 and stats.replayed >= 4, row[1] .. ": " .. stats.replayed)
      end
    ]]))
  end)

  -- The error of a script on two ranks.
  local function fails(script, opts)
    opts = opts or {}
    local status, out, err = ranks.run(2, SAME .. script,
      { env = gpu_ranks.env(opts.env or {}), seconds = 120, launch = { "--timeout", opts.timeout or "60" } })
    assert(status ~= 0, "it should have failed: " .. out .. err)
    return err
  end

  it("needs every gradient on every rank", function()
    assert.matches("backward: 'unused%.[a-z]+' has no gradient on this rank, and a captured step cannot ask",
      fails [[same("odd", "ZeRO-3")]])
  end)

  it("works with gradients that were reduced", function()
    assert.matches("gradients of [^\n]* are whole on each rank before or after a captured step",
      fails [[same("gpt", "ZeRO-3", { accumulate = 2, whole_in_no_sync = true })]])
    assert.matches("dynamo_backend = 'cudagraphs' cannot record passes under ZeRO%-3 with whole_in_no_sync",
      fails [[train("gpt", "ZeRO-3", { backend = "cudagraphs", whole_in_no_sync = true })]])
  end)

  it("is not for buffers in host memory", function()
    for kind, said in pairs { states = "buffers of its parameters rest elsewhere %(offload%)",
      values = "the values of [^\n]* rest in host memory" } do
      local script = ([[same("gpt", "ZeRO-3", { clip = false, offload = { %s = "cpu" } })]]):format(kind)
      assert.matches(said .. "[^\n]* captured", fails(script))
    end
  end)

  it("does not run inside summon_full_params", function()
    assert.matches("a captured step cannot run while summon_full_params holds the values of", fails [[
      local _, model, _, accelerator, pass = train("gpt", "ZeRO-3", { captured = true, steps = 6 })
      local x = core.randint(0, 19, { 6, 6 }):to(accelerator.device)
      accelerate.utils.summon_full_params(model, function() pass(x) end)
    ]])
  end)

  it("ends when a rank dies in a replay", function()
    if not gpu_ranks.emulated then return pending("the stand-in for NCCL goes wrong on request") end
    local err = fails([[train("gpt", "ZeRO-3", { captured = true, steps = 400, clip = false })]],
      { env = { ACCEL_FAKE_NCCL = "die:1:400", ACCEL_EMULATED_QUEUE = "40" }, timeout = "600" })
    assert.matches("rank 1 of 2 was killed by SIGKILL", err)
  end)
end)
