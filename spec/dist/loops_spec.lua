-- The loops of Accelerate's documentation, written in Lua (loops/), on one to four ranks, against
-- the same training written out by hand on one process.  12 rows a step on any number of ranks; 60
-- rows divide into steps, 53 do not: then several ranks fill the last step with rows from the
-- start, and one rank has a short one.
local core = require "accelerate.core"
local common = require "spec.dist.loops.common"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local near = require("spec.support.numbers").lists_near
local optim = require "accelerate.optim"
local state = require "accelerate.state"

local results = {}  -- by number of ranks; one launch serves all tests

local function result(n, name, length)
  if not results[n] then
    host.in_folder(function(folder)
      local status, out, err = host.run({ "--num_processes", tostring(n), "spec/dist/loops/all.lua", folder })
      if status ~= 0 then error(("%d ranks: status %d\n%s"):format(n, status, err)) end
      results[n] = json.decode(out)
    end)
  end
  return results[n][("%s %d"):format(name, length)]
end

local function momentum(params) return optim.SGD(params, { lr = 0.1, momentum = 0.9 }) end
local function exponential(optimizer) return optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.97 }) end

--- Calls body(ranks, length, filled, text) for each number of ranks and length.
local function each_run(body)
  for n = 1, 4 do
    for _, length in ipairs { 60, 53 } do body(n, length, n > 1, ("%d ranks, %d rows"):format(n, length)) end
  end
end

describe("the loops", function()
  it("base and migrated: the migrated one does on any number of ranks what the base loop does on one",
    function()
    local base = require("spec.dist.loops.base")
    for _, length in ipairs { 60, 53 } do
      near(base(length).values, result(1, "migrated", length).values, 0, "one rank changes no bit")
      near(common.by_hand(length, false, { optimizer = momentum, schedule = exponential }),
        base(length).values, 1e-6, "by hand")
    end
    each_run(function(n, length, filled, what)
      local values, steps = common.by_hand(length, filled,
        { optimizer = momentum, schedule = exponential, moves = n })
      local got = result(n, "migrated", length)
      near(values, got.values, 1e-5, what)
      assert.are.equal(steps, got.steps)
      assert.are.equal(12, got.total)
      near({ 0.1 * 0.97 ^ (steps * n) }, { got.rate }, 1e-9, what)
    end)
  end)

  it("with split_batches take the script's batch size for that of all ranks, in the order of one rank",
    function()
    for _, length in ipairs { 60, 53 } do
      local orders = result(1, "split", length).orders
      assert.are.equal(length, #orders[1])
      assert.are_not.same(orders[1], orders[2])
      for n = 1, 4 do
        local got = result(n, "split", length)
        assert.are.same(orders, got.orders)
        -- what is missing in the last batch is filled from the first one, which is where the order
        -- starts
        local values, steps = common.by_hand(length, n > 1,
          { optimizer = momentum, schedule = exponential, orders = orders })
        near(values, got.values, 1e-5, ("%d ranks, %d rows"):format(n, length))
        near({ 0.1 * 0.97 ^ steps }, { got.rate }, 1e-9, "one move a step")
      end
    end
  end)

  it("of distributed evaluation see every row once and in order, and give one rank's metrics", function()
    each_run(function(n, length, _, what)
      local got, one = result(n, "evaluation", length), result(1, "evaluation", length)
      local rows = {}
      for i = 1, length do rows[i] = i end
      assert.are.same(rows, got.order, what)
      assert.are.same({ length, length }, got.seen, what)
      near(one.accuracy, got.accuracy, 1e-12, what)
      near(one.losses, got.losses, 1e-5, what)
      local values, _, model = common.by_hand(60, false,
        { optimizer = function(p) return optim.AdamW(p, { lr = 0.01 }) end })
      near(values, got.values, 1e-5, what)
      local x, y = unpack(common.dataset(length).tensors)
      near({ model(x):argmax({ dim = -1 }):eq(y):sum():item() / length }, { got.accuracy[2] }, 1e-12, what)
    end)
  end)

  it("of gradient accumulation update at every second batch and at the last, and move the schedule then",
    function()
    each_run(function(n, length, filled, what)
      local values = common.by_hand(length, filled, {
        optimizer = function(p) return optim.SGD(p, { lr = 0.1, momentum = 0.9, weight_decay = 0.01 }) end,
        schedule = exponential, moves = n, window = 2,
      })
      local got = result(n, "accumulation", length)
      near(values, got.values, 1e-5, what)
      assert.are.equal(2 * 3, got.updates)  -- five batches an epoch
      near({ 0.1 * 0.97 ^ (6 * n) }, { got.rate }, 1e-9, what)
    end)
  end)

  it("of gradient clipping clip what all ranks have together", function()
    each_run(function(n, length, filled, what)
      local norms = {}
      local values = common.by_hand(length, filled, {
        optimizer = function(p) return optim.SGD(p, { lr = 0.2 }) end, window = 2,
        clip = function(params)
          local sum = 0
          for _, p in ipairs(params) do sum = sum + (p.grad:abs() ^ 3):sum():item() end
          norms[#norms + 1] = sum ^ (1 / 3)
          local factor = math.min(1, 0.05 / (norms[#norms] + 1e-6))
          core.no_grad(function()
            for _, p in ipairs(params) do p.grad = (p.grad * factor):clamp(-0.02, 0.02) end
          end)
        end,
      })
      local got = result(n, "clipping", length)
      near(norms, got.norms, 1e-5, what)
      near(values, got.values, 1e-5, what)
    end)
  end)

  it("of mixed precision compute in bfloat16 and agree as well", function()
    each_run(function(n, length, filled, what)
      local got = result(n, "precision", length)
      assert.are.equal("float32 float32", got.kinds)
      local lower = { dtype = "bfloat16" }
      local values, steps = common.by_hand(length, filled, {
        optimizer = function(p) return optim.SGD(p, { lr = 0.005 }) end, schedule = exponential,
        forward = function(model, x)
          return require("accelerate.precision.autocast").autocast(lower,
            function() return model(x) end):float()
        end,
      })
      near(values, got.values, 1e-5, what)
      near({ 0.005 * 0.97 ^ steps }, { got.rate }, 1e-9, what)
      local whole = common.by_hand(length, filled,
        { optimizer = function(p) return optim.SGD(p, { lr = 0.005 }) end, schedule = exponential })
      local differs = 0
      for i, v in ipairs(whole) do differs = math.max(differs, math.abs(v - values[i])) end
      assert.is_true(differs > 1e-6, "in float32 it would be another result")
    end)
  end)

  it("of deferred execution wait for the main process, and save what all have trained", function()
    each_run(function(n, length, filled, what)
      near(common.by_hand(length, filled, { optimizer = function(p) return optim.SGD(p, { lr = 0.1 }) end }),
        result(n, "deferred", length).values, 1e-5, what)
    end)
  end)

  it("with a trigger stop all ranks at the step at which one of them saw a reason", function()
    each_run(function(n, length, filled, what)
      local values, steps = common.by_hand(length, filled, {
        optimizer = function(p) return optim.SGD(p, { lr = 0.1 }) end,
        stop = function(rows)
          for _, row in ipairs(rows) do
            if row == 41 then return true end
          end
        end,
      })
      local got = result(n, "trigger", length)
      assert.are.equal(4, steps)
      assert.are.equal(steps, got.steps, what)
      near(values, got.values, 1e-5, what)
    end)
  end)
end)

describe("micro-batches of different weight", function()
  after_each(function() state.reset() end)

  -- The rows of a step are cut at random places into micro-batches, dealt to the ranks in any way;
  -- some ranks get none.
  it("give the same update for any split into micro-batches and ranks", function()
    local ranks = require "spec.support.ranks"
    for n = 1, 4 do
      ranks.ok(n, [[
        local nn, optim = require "accelerate.nn", require "accelerate.optim"
        local accelerator = accelerate.Accelerator()
        local choose = core.Generator(2024 + ranks)
        local function random(low, high)
          return core.randint(low, high + 1, { 1 }, { generator = choose }):item()
        end
        local ROWS = 24
        core.manual_seed(8)
        local x, y = core.randn(ROWS, 5), core.randint(0, 3, { ROWS })
        local function network()
          core.manual_seed(3)
          return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        end
        local function summed(model, from, count)
          return nn.functional.cross_entropy(model(x:narrow(1, from, count)), y:narrow(1, from, count),
            { reduction = "sum" })
        end
        for case = 1, 12 do
          local accumulate = case % 2 == 0
          local plain, model = network(), network()
          local by_hand, optimizer = optim.SGD(plain:parameters(), { lr = 0.3, momentum = 0.9 })
          model, optimizer = accelerator:prepare(model,
            optim.SGD(model:parameters(), { lr = 0.3, momentum = 0.9 }))
          for step = 1, 3 do
            (summed(plain, 1, ROWS) / ROWS):backward()
            by_hand:step()
            by_hand:zero_grad()
            -- all ranks draw the same numbers
            local mine, longest, from, counts = {}, 0, 1, {}
            while from <= ROWS do
              local count = math.min(random(1, 7), ROWS - from + 1)
              local owner = random(0, ranks - 1)
              counts[owner] = (counts[owner] or 0) + 1
              longest = math.max(longest, counts[owner])
              if owner == rank then mine[#mine + 1] = { from, count } end
              from = from + count
            end
            accelerator.gradient_accumulation_steps = accumulate and longest or 1
            accelerator.step = 0
            for k = 1, longest do  -- as many passes on each rank; those that a rank lacks weigh nothing
              local function pass()
                local from, count = unpack(mine[k] or {})
                local loss = count and summed(model, from, count) or summed(model, 1, 1) * 0
                accelerator:backward(loss, { weight = count or 0 })
              end
              if accumulate then
                accelerator:accumulate(model, function() pass() optimizer:step() optimizer:zero_grad() end)
              elseif k < longest then accelerator:no_sync(model, pass)
              else pass() end
            end
            if not accumulate then optimizer:step() optimizer:zero_grad() end
            accelerator.sync_gradients = true
            local others = model:parameters()
            for i, p in ipairs(plain:parameters()) do
              local worst = (p - others[i]):abs():max():item()
              check(worst <= 1e-6, ("case %d, step %d, parameter %d: differs by %g"):format(case, step, i,
                worst))
            end
          end
          accelerator:free_memory()
        end
      ]])
    end
  end)
end)
