-- Runs that go on from a checkpoint: with the same bits after they were killed, and on another
-- number of ranks.  ACCEL_STRESS=100 sets the number of runs that are killed at a drawn moment
-- (default 3).
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

local SCRIPT = "spec/support/resumable.lua"

local function sorted_lines(text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do lines[#lines + 1] = line end
  table.sort(lines)
  return table.concat(lines, "\n")
end

-- Runs the script to its end, in a folder that may have checkpoints.  Returns its lines.
local function finish(folder, variant, n)
  local status, out, err = host.run { "--num_processes", tostring(n), "--cpu", SCRIPT, folder, variant }
  assert(status == 0, err)
  return sorted_lines(out), err
end

describe("a run that was killed", function()
  after_each(processes.clean)

  for _, variant in ipairs { "plain", "weighted", "two_loaders", "norm", "bf16", "stream", "skip",
    "async", "sharded", "sharded_async", "full", "local" } do
    it("goes on with the same bits: " .. variant, function()
      for n = 1, 2 do
        local expected
        host.in_folder(function(folder) expected = finish(folder, variant, n) end)
        for _, kill_at in ipairs { 5, n == 1 and 14 or 10 } do -- in a window of 3; at the end of a pass
          host.in_folder(function(folder)
            local status = host.run { "--num_processes", tostring(n), "--cpu", SCRIPT, folder, variant,
              tostring(kill_at) }
            assert.equal(137, status)
            assert.equal(expected, (finish(folder, variant, n)))
          end)
        end
      end
    end)
  end

  -- What goes on has the bits of a run that was not killed, whichever variant of the list it was.
  local function killed_at_any_moment(variants, rounds)
    local expected
    host.in_folder(function(folder) expected = finish(folder, variants[1], 2) end)
    for round = 1, rounds do
      host.in_folder(function(folder)
        local got
        local variant = variants[round % #variants + 1]
        for _ = 1, 3 do -- killed up to three times
          local run = processes.start { "--num_processes", "2", "--cpu", SCRIPT, folder, variant }
          processes.sleep(math.random() * 0.6)
          run:signal(processes.SIGKILL)
          local status, out = run:wait(20)
          if status == 0 then got = sorted_lines(out) break end
        end
        assert.equal(expected, got or finish(folder, variant, 2), "round " .. round)
        for _, name in ipairs(assert(fs.list(folder .. "/checkpoints"))) do
          matches(name, "^checkpoint_%d+$")
        end
      end)
    end
  end

  it("at any moment goes on with the same bits", function()
    killed_at_any_moment({ "plain", "async" }, tonumber(os.getenv "ACCEL_STRESS" or 3))
  end)

  it("at any moment goes on with the same bits when it was sharded", function()
    killed_at_any_moment({ "sharded", "sharded_async", "full", "local" },
      tonumber(os.getenv "ACCEL_STRESS" or 4))
  end)
end)

describe("a checkpoint", function()
  local folder
  before_each(function()
    state.reset()
    folder = os.tmpname()
    os.remove(folder)
  end)
  after_each(function()
    state.reset()
    fs.remove_tree(folder)
  end)

  it("goes on with the same samples in the same order on another number of ranks", function()
    local script = [[
      local data, nn, optim = require "accelerate.data", require "accelerate.nn", require "accelerate.optim"
      core.manual_seed(4)
      local accelerator = accelerate.Accelerator { cpu = true,
        dataloader_config = accelerate.DataLoaderConfiguration { split_batches = true,
          use_stateful_dataloader = true } }
      local x, model = core.arange(48):to("float32"), nn.Linear(1, 1)
      local optimizer = optim.SGD(model:parameters(), { lr = 1e-4, momentum = 0.9 })
      local loader = data.DataLoader(data.TensorDataset(x:reshape(48, 1)), { batch_size = 4, shuffle = true })
      model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
      local from, to, batch = tonumber(arg[2]), tonumber(arg[3]), 0
      if from > 0 then
        accelerator:load_state(arg[1])
        batch = from
      end
      for b in loader:iter() do
        batch = batch + 1
        local all = accelerator:gather(b):reshape(4):totable()
        table.sort(all)
        accelerator:print(batch, table.concat(all, " "))
        accelerator:backward((model(b) - 1):square():mean())
        optimizer:step()
        optimizer:zero_grad()
        if batch == to then accelerator:save_state(arg[1]) break end
      end
      accelerator:print(("weight %.5f"):format(model.weight:item()))
    ]]
    local function run(n, path, from, to)
      return (ranks.ok(n, script, { arguments = { path, tostring(from), tostring(to) } }))
    end
    host.in_folder(function(path)
      local whole = run(1, path .. "/one", 0, 99)
      for _, pair in ipairs { { 1, 2 }, { 2, 1 }, { 4, 2 } } do
        local first = run(pair[1], path .. "/c", 0, 5):gsub("weight[^\n]*\n", "")
        assert.equal(whole, first .. run(pair[2], path .. "/c", 5, 99), table.concat(pair, " to "))
      end
    end)
  end)

  it("says what does not carry over to another number of ranks", function()
    host.in_folder(function(path)
      local status = host.run { "--num_processes", "2", "--cpu", SCRIPT, path, "plain", "5" }
      assert.equal(137, status)
      local _, err = finish(path, "plain", 1)
      has(err, "num_processes was 2 and is 1")
      has(err, "gradients of an open accumulation window of 2 ranks, and this run has 1: they are left out")
    end)
    host.in_folder(function(path)
      assert.equal(137, (host.run { "--num_processes", "1", "--cpu", SCRIPT, path, "plain", "5" }))
      local _, err = finish(path, "plain", 2)
      has(err, "has no random_states_1.pkl: rank 1 keeps its own generators")
    end)
  end)
end)
