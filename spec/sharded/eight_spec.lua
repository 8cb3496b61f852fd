-- Weights that are gathered in eight bits: host/core/params/eight.c, and how layers in eight bits
-- take them (lua/accelerate/precision/float8.lua).
local TRAIN = require("spec.support.eight_programs").TRAIN
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"

local GATHERING = { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = "0" } }

describe("weights gathered in eight bits", function()
  it("train with the bits of those that are gathered in bfloat16", function()
    for n = 2, 3 do
      local out = ranks.ok(n, TRAIN .. [[
        same({}, "plain")
        same({ reshard = false }, "values that stay until backward")
        same({ checkpointing = true }, "activations that are computed again")
        if rank == 0 then print "equal" end
      ]], GATHERING)
      assert.are.equal("equal\n", out)
    end
  end)

  it("do so in other types, with other uses, and with strange numbers", function()
    local out = ranks.ok(2, TRAIN .. [[
      local wide = { param_dtype = "float32", reduce_dtype = "float32", output_dtype = "float32" }
      same({ policy = wide }, "other values in float32")
      same({ dtype = "bfloat16", steps = 0 }, "a model in bfloat16")
      same({ edit = function(model) model.reads = true end }, "a weight that the model reads")
      same({ steps = 2, edit = function(model)
        core.no_grad(function()
          model.h[1][1].weight:zero_()
          model.h[2][1].weight:mul_(1e-38)
          model.h[3][1].weight:mul_(1e30)
        end)
      end }, "small, large and no numbers")
      for _, strange in ipairs { 0 / 0, 1 / 0 } do
        same({ steps = 1, edit = function(model)
          core.no_grad(function() model.h[1][1].weight[3][2] = strange end)
        end }, "no number")
      end
      if rank == 0 then print "equal" end
    ]], GATHERING)
    assert.are.equal("equal\n", out)
  end)

  -- Values are all that differs: of what is read in float32 (biases here), gathered ones are
  -- rounded to bfloat16, and those that ranks share are not.
  it("train as values that ranks share do, but for the rounding of what is read in float32", function()
    local function numbers(opts, how)
      return ranks.ok(2, TRAIN .. ([[
        local function rounded(model)
          core.no_grad(function()
            for _, p in ipairs(model:parameters()) do p:copy_(p:to("bfloat16"):float()) end
          end)
        end
        local all = run(true, %s)
        table.remove(all, 4) -- the look after the step, of values that are not rounded any more
        give(all)
      ]]):format(opts), how)
    end
    local SHARED = { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = "1" } }
    for _, opts in ipairs { "{ steps = 1, edit = rounded }",
      "{ steps = 1, edit = rounded, handler = utils.TERecipeKwargs {} }" } do
      assert.are.equal(numbers(opts, GATHERING), numbers(opts, SHARED))
    end
    assert.are_not.equal(numbers("{ steps = 1 }", GATHERING), numbers("{ steps = 1 }", SHARED))
  end)

  it("train over copies, from files and from a checkpoint with the same bits", function()
    local STEPS = TRAIN .. [[
      local function made(on, opts)
        state.reset()
        core.manual_seed(4)
        local plugin = { fsdp_version = 2, auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
          transformer_cls_names_to_wrap = { "Sequential" }, cpu_offload = opts.folder ~= nil,
          offload_folder = opts.folder }
        local acc = accelerate.Accelerator { mixed_precision = "fp8", fsdp_plugin = plugin,
          parallelism_config = opts.mesh,
          kwargs_handlers = { utils.AORecipeKwargs { enable_fsdp_float8_all_gather = on } } }
        local model = Wide()
        local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
        model, optimizer = acc:prepare(model, optimizer)
        return acc, model, optimizer
      end
      local function losses(acc, model, optimizer)
        local x, list = core.ones(16, 32), {}
        for i = 1, 4 do
          local loss = model(x * i * (rank + 1)):square():mean()
          acc:backward(loss)
          optimizer:step()
          optimizer:zero_grad()
          list[i] = ("%.9g"):format(loss:item())
        end
        return table.concat(list, " ")
      end
    ]]
    host.in_folder(function(folder)
      for call, n in pairs { ["{ mesh = { dp_replicate_size = 2, dp_shard_size = 2 } }"] = 4,
        [("{ folder = %q }"):format(folder)] = 2 } do
        ranks.ok(n, STEPS .. ([[
          local opts = %s
          local a, b = losses(made(true, opts)), losses(made(false, opts))
          check(a == b, a .. " beside " .. b)
        ]]):format(call), GATHERING)
      end
      ranks.ok(2, STEPS .. ([[
        local acc, model, optimizer = made(true, {})
        losses(acc, model, optimizer)
        acc:save_state(%q)
        local wanted = losses(acc, model, optimizer)
        for _, on in ipairs { true, false } do
          acc, model, optimizer = made(on, {})
          acc:load_state(%q)
          check(losses(acc, model, optimizer) == wanted, tostring(on))
        end
      ]]):format(folder .. "/state", folder .. "/state"), GATHERING)
    end)
  end)

  it("come in an order that does not depend on when a rank collects garbage", function()
    for _, on in ipairs { "true", "false" } do
      local out = ranks.ok(2, TRAIN .. ([[
        local _, model, accelerator, x = run(%s, { steps = 1 })
        for step = 1, 4 do
          accelerator:backward(model(x):square():mean())
          if rank == 0 then collectgarbage() end
        end
        if rank == 0 then print "together" end
      ]]):format(on), GATHERING)
      assert.are.equal("together\n", out)
    end
  end)

  it("are sent in that type, after the ranks have agreed on their largest sizes", function()
    -- The ranks call for other layouts.
    local function differ(one, other)
      local status, _, err = ranks.run(2, TRAIN .. ([[
        local _, model = run(true, { steps = 1 })
        local weight = rank == 0 and model.%s.weight or model.%s.weight
        require("accelerate.parallel.flat").of(weight).layout:acquire "compute"
      ]]):format(one, other), GATHERING)
      assert.are_not.equal(0, status)
      return err
    end
    assert.matches("all_reduce%(int32, 2 elements, max%)", differ("twice", "h[1][1]"))
    assert.matches("all_gather%(float8_e4m3fn, 1920 elements%)", differ("twice", "h[2][1]"))
  end)

  it("have the bits of the whole weight's cast", function()
    local out = ranks.ok(2, TRAIN .. [[
      local _, model = run(true, { steps = 1 })
      local flat = require("accelerate.parallel.flat").of(model.h[1][1].weight)
      check(flat.layout:gathers_eight())
      check(not require("accelerate.parallel.flat").of(model.h[1][1].bias).layout:gathers_eight())
      check(not require("accelerate.parallel.flat").of(model.first.weight).layout:gathers_eight())
      flat.layout:acquire "compute"
      flat.layout:computes(true)
      local eight, factor = core.flat_in_eight(model.h[1][1].weight, "bfloat16")
      check(eight.dtype == "float8_e4m3fn" and eight:numel() == 48 * 80)
      check(not core.flat_in_eight(model.h[1][1].weight, "float16"))
      check(not core.flat_in_eight(model.first.weight, "bfloat16"))
      local values = eight:float() * factor
      flat.layout:computes(false)
      flat.layout:let_go(false)
      parallel.summon(model, false, nil, function()
        local wanted, _, numbers = core._row "_float8_cast"(
          model.h[1][1].weight:detach():to "bfloat16", nil, "float8_e4m3fn", false)
        check(values:eq(wanted:float() * numbers:narrow(1, 1, 1)):all():item())
      end)
      if rank == 0 then print "cast" end
    ]], GATHERING)
    assert.are.equal("cast\n", out)
  end)

  it("are one byte an element, as the plan's table says", function()
    local out = ranks.ok(2, TRAIN .. [[
      local function moved(on)
        local _, model, accelerator, x = run(on, { steps = 1 })
        local before = core.flat_gathered()
        model(x):sum():backward()
        return core.flat_gathered() - before, accelerator:explain_sharding(model)
      end
      local wide, former = moved(false)
      local less, text = moved(true)
      -- the blocks' weights come twice, `twice` once, which stays until backward; and the blocks'
      -- biases, 512 bytes in a layout of their own, are not needed in backward
      check(wide - less == 2 * 6 * 48 * 80 + 48 * 48 + 3 * 512, ("%d, %d"):format(wide, less))
      check(text:find("weights in eight bits travel in +float8_e4m3fn +AORecipeKwargs"), text)
      check(not former:find "eight bits")
      check(former:find "each forward and backward pass  75.3 KB", former)
      check(text:find "each forward and backward pass  51.1 KB", text)
      check(text:find "two units' values +15.9 KB" and former:find "two units' values +31.2 KB", text)
    ]], GATHERING)
    assert.matches("51.1 KB", out)
  end)

  it("do not exist where ranks share memory or have whole values, as the table says", function()
    for launch, line in pairs {
      ["fsdp_version = 2"] = "nothing is gathered: the ranks share memory",
      ["sharding_strategy = 'SHARD_GRAD_OP', fsdp_version = 1"] = "nothing is gathered: values are whole",
    } do
      local out = ranks.ok(2, TRAIN .. ([[
        state.reset()
        local accelerator = accelerate.Accelerator { mixed_precision = "fp8", fsdp_plugin = { %s } }
        local model = accelerator:prepare(Wide())
        accelerator:explain_sharding(model)
        accelerator:backward(model(core.randn(4, 32)):sum())
        check(core.flat_gathered() == 0)
      ]]):format(launch), { launch = { "--cpu" } })
      assert.matches("weights in eight bits travel in +" .. line, out)
    end
  end)

  it("are exact inside summon_full_params, where forward passes see edits", function()
    local out = ranks.ok(2, TRAIN .. [[
      local outputs = {}
      for _, on in ipairs { false, true } do
        local _, model, accelerator, x = run(on, { steps = 1 })
        local list = {}
        local function look() list[#list + 1] = core.no_grad(function() return model(x) end):totable() end
        local weight = model.h[1][1].weight
        look()
        utils.summon_full_params(model, { writeback = true }, function()
          look()
          core.no_grad(function() weight:mul_(3) end)
          look()
          core.no_grad(function() weight:mul_(-2) end)
          look()
        end)
        look()
        outputs[#outputs + 1] = list
      end
      local json = require "accelerate.utils.json"
      for i = 1, 5 do
        check(json.encode(outputs[1][i]) == json.encode(outputs[2][i]), "output " .. i)
        check(i == 1 or json.encode(outputs[2][i]) ~= json.encode(outputs[2][i - 1]), "no edit " .. i)
      end
      if rank == 0 then print "exact" end
    ]], GATHERING)
    assert.are.equal("exact\n", out)
  end)
end)
