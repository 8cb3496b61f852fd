-- Sharded training with ranks on GPUs: gathers and reductions of host/core/params/home.c over
-- kernels/cuda/runtime/nccl.cu; see support/gpu_ranks.lua and spec/sharded/training_spec.lua.
local gpu_ranks = require "spec.support.gpu_ranks"
local json = require "accelerate.utils.json"
local programs = require "spec.support.sharded_programs"

local worst = programs.worst

describe("sharded training on GPUs of several ranks", function()
  if gpu_ranks.why then
    it("is that of one", function() pending(gpu_ranks.why) end)
    return
  end

  -- schedule: when the emulated device's streams run what they have (emulate.h); nil: at once
  local function train(n, call, schedule)
    return json.decode(assert(gpu_ranks.on(n, programs.TRAIN .. "give((train(" .. call .. ")))",
      { env = { ACCEL_EMULATED_SCHEDULE = schedule and tostring(schedule) } })))
  end

  it("gives two and four ranks the losses, norms and parameters of one", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    for _, model in ipairs { "gpt", "odd" } do
      local one = train(1, ("%q, 'DDP'"):format(model))
      for n = 2, math.min(gpu_ranks.most, 4), 2 do
        for _, strategy in ipairs { "ZeRO-1", "ZeRO-2", "ZeRO-3" } do
          local there = train(n, ("%q, %q"):format(model, strategy))
          assert.is_true(worst(one, there) <= 2e-5,
            ("%s under %s on %d GPUs: %g"):format(model, strategy, n, worst(one, there)))
        end
      end
    end
  end)

  it("trains in bfloat16 and float16 as replicas do", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    for _, precision in ipairs { "bf16", "fp16" } do
      local opts = ("{ precision = %q, accumulate = 2 }"):format(precision)
      local plain = train(2, "'gpt', 'DDP', " .. opts)
      local there = train(2, "'gpt', 'ZeRO-3', " .. opts)
      assert.is_true(worst(plain, there) <= 2e-2, ("%s: %g"):format(precision, worst(plain, there)))
    end
  end)

  it("gathers the unit that comes next while one computes, in the order of the pass before", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    local out = assert(gpu_ranks.on(2, programs.TRAIN .. [[
      local flat_buffers = require "accelerate.parallel.flat"
      local function blocks(self)
        local h = self.h
        return self.turned and { h[3], h[2], h[1] } or { h[1], h[2], h[3] }
      end
      function GPT:forward(ids)
        local x, list = self.tokens(ids), blocks(self)
        self.seen = {}
        for k, block in ipairs(list) do
          local hook = block:register_forward_pre_hook(function()
            local coming = list[k + 1] and flat_buffers.of(list[k + 1].up.weight).layout:is_arriving()
            self.seen[k] = coming and "ahead" or "-"
          end)
          x = block(x)
          hook:remove()
        end
        return self.head(self.norm(x))
      end
      local function losses(plan)
        local _, model, optimizer, accelerator = train("gpt", plan, { steps = 1 })
        local x, list, ahead = core.randint(0, 19, { 4, 6 }):to(accelerator.device), {}, {}
        local function pass(turned)
          model.turned = turned
          local logits = model(x):reshape(-1, 19)
          ahead[#ahead + 1] = table.concat(model.seen, " ")
          return F.cross_entropy(logits, x:reshape(-1))
        end
        for _, turned in ipairs { false, true, true, false } do
          local loss = pass(turned)
          accelerator:backward(loss)
          optimizer:step()
          optimizer:zero_grad()
          list[#list + 1] = loss:item()
          core.no_grad(function() list[#list + 1] = pass(turned):item() end)
        end
        return list, ahead
      end
      core.manual_seed(1)
      local a, ahead = losses "ZeRO-3"
      core.manual_seed(1)
      local b = losses "ZeRO-2"
      for i = 1, #a do check(a[i] == b[i], ("loss %d: %g beside %g"):format(i, a[i], b[i])) end
      if rank == 0 then print(table.concat(ahead, "\n")) end
    ]]))
    -- training and evaluation in turns: the order of the step before, the turned one twice, and the
    -- first one again.  What was begun for the former order arrives until the pass ends.
    local lines = { "ahead ahead -", "- - -", "- ahead -", "- ahead -", "ahead ahead -", "ahead ahead -",
      "ahead ahead -", "ahead ahead -" }
    assert.is_truthy(out:find(table.concat(lines, "\n"), 1, true), out)
  end)

  it("gathers weights in eight bits, with the bits of those that are gathered in bfloat16", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    local out = assert(gpu_ranks.on(2, require("spec.support.eight_programs").TRAIN .. [[
      same({ steps = 2 }, "on GPUs")
      if rank == 0 then print "equal" end
    ]]))
    assert.matches("equal", out)
  end)

  it("gives the same bits whenever the streams of computation and of gathers run", function()
    if not gpu_ranks.emulated then return pending "streams are held back on the emulated device alone" end
    local away = "offload = { states = 'cpu', values = 'cpu', gradients = 'cpu' }"
    for _, call in ipairs { "'gpt', 'ZeRO-3', { steps = 2, accumulate = 2 }",
      "'odd', 'ZeRO-2', { steps = 2 }", "'gpt', 'ZeRO-3', { steps = 2, " .. away .. " }" } do
      local at_once = train(2, call)
      for _, schedule in ipairs { 1, 3, 4711 } do
        assert.are.equal(0, worst(at_once, train(2, call, schedule)),
          ("%s, schedule %d"):format(call, schedule))
      end
    end
  end)

  it("steps matrices that are cut with Muon and Adafactor as replicas do", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    for _, how in ipairs {
      "optimizer = 'Muon', clip = false, options = { lr = 0.002 }",
      "optimizer = 'Adafactor', options = { lr = 0.003, eps = { 3e-2, 1e-3 } }",
      "optimizer = 'Adafactor', options = { lr = 0.003, eps = { 3e-2, 1e-3 } }, precision = 'fp16'",
    } do
      local plain = train(2, ("'gpt', 'DDP', { steps = 3, %s }"):format(how))
      for _, strategy in ipairs { "ZeRO-1", "ZeRO-3" } do
        local there = train(2, ("'gpt', %q, { steps = 3, %s }"):format(strategy, how))
        local limit = how:find "fp16" and 2e-2 or 1e-4
        assert.is_true(worst(plain, there) <= limit,
          ("%s, %s: %g"):format(strategy, how, worst(plain, there)))
      end
    end
  end)

  it("clips parameters of which a rank has nothing", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    local out = assert(gpu_ranks.on(2, programs.TRAIN .. [[
      local _, model, _, accelerator = train("gpt", "ZeRO-3", { steps = 1 })
      local x = core.randint(0, 19, { 4, 6 }):to(accelerator.device)
      accelerator:backward(model(x):square():mean())
      local list = { model.norm.weight, model.norm.bias } -- on one rank
      local before = accelerator:clip_grad_norm_(list, 1e-3):item()
      local after = accelerator:clip_grad_norm_(list, 1):item()
      if rank == 0 then print(before > 1e-3 and math.abs(after - 1e-3) < 1e-5 and "clipped") end
    ]]))
    assert.matches("clipped", out)
  end)

  it("gives the same bits twice", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    local call = "'gpt', 'ZeRO-3', { accumulate = 2 }"
    assert.are.equal(0, worst(train(2, call), train(2, call)))
  end)
end)
