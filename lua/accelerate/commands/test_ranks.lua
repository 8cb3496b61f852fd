--- The script of `accel-run test`: each rank checks that collectives, loaders, gradient
--- accumulation and resuming do here what they should, and the main process prints what was found.
local accelerate = require "accelerate"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local accelerator = accelerate.Accelerator()
local ranks, rank = accelerator.num_processes, accelerator.process_index

-- What the current check has found wrong on this rank. It goes on to its end, so that the ranks
-- still call the same collectives.
local wrong = {}

local function expect(what, wanted, got)
  if wanted ~= got then
    wrong[#wrong + 1] = ("%s: expected %s, got %s"):format(what, tostring(wanted), tostring(got))
  end
end

local function on_device(list) return tensor.tensor(list):to(accelerator.device) end

local function shown(t)
  local list = {}
  for i, value in ipairs(t:to("cpu"):tolist()) do list[i] = ("%g"):format(value) end
  return table.concat(list, " ")
end

local function counted(from, to)
  local list = {}
  for i = from, to do list[#list + 1] = ("%g"):format(i) end
  return table.concat(list, " ")
end

-- ---- the checks

local function collectives()
  expect("gather", counted(0, 2 * ranks - 1), shown(accelerator:gather(on_device { 2 * rank, 2 * rank + 1 })))
  local sum = ranks * (ranks + 1) / 2
  expect("reduce, sum", ("%g"):format(sum), shown(accelerator:reduce(on_device { rank + 1 }, "sum")))
  expect("reduce, mean", ("%g"):format(sum / ranks),
    shown(accelerator:reduce(on_device { rank + 1 }, "mean")))
  expect("broadcast", "7", shown(utils.broadcast(on_device { rank == 0 and 7 or -1 })))
  local padded = accelerator:pad_across_processes(tensor.ones(rank + 1):to(accelerator.device))
  expect("pad_across_processes", ranks, padded.shape[1])
  expect("gather_object", ranks, #utils.gather_object { "rank " .. rank })
  accelerator:wait_for_everyone()
  return ("gather, reduce, broadcast, pad, objects over %d rank%s"):format(ranks, ranks == 1 and "" or "s")
end

-- All samples that ranks see in a pass, once each, in order.
local function passed(loader)
  local seen = {}
  for x in loader:iter() do
    for _, value in ipairs(accelerator:gather_for_metrics(x):to("cpu"):tolist()) do
      seen[#seen + 1] = value
    end
  end
  table.sort(seen)
  for i, value in ipairs(seen) do seen[i] = ("%g"):format(value) end
  return table.concat(seen, " ")
end

local function loaders()
  local n = 8 * ranks + 3 -- the last batches are uneven
  local values = {}
  for i = 1, n do values[i] = i - 1 end
  local set = data.TensorDataset(tensor.tensor(values))
  for _, shuffle in ipairs { false, true } do
    local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 4, shuffle = shuffle }))
    expect(shuffle and "a shuffled pass" or "a pass", counted(0, n - 1), passed(loader))
  end
  return ("%d samples, each seen once, in order and shuffled"):format(n)
end

local function small_model()
  tensor.manual_seed(11)
  return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
end

-- `steps` updates with gradients of `parts` micro-batches each; the parameters afterwards as one
-- list.
local function trained(steps, parts)
  local model, x, y = small_model(), tensor.randn(4 * ranks, 3), tensor.randn(4 * ranks, 1)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  model, optimizer = accelerator:prepare(model, optimizer)
  local mine = 4 / parts
  for _ = 1, steps do
    for part = 1, parts do
      local first = rank * 4 + (part - 1) * mine + 1
      local function step()
        local out = model(x:narrow(1, first, mine):to(accelerator.device))
        local loss = (out - y:narrow(1, first, mine):to(accelerator.device)):pow(2):mean()
        accelerator:backward(loss / parts)
      end
      if part < parts then accelerator:no_sync(model, step) else step() end
    end
    optimizer:step()
    optimizer:zero_grad()
  end
  local list = {}
  for _, p in ipairs(model:parameters()) do
    for _, value in ipairs(p:detach():to("cpu"):to("float32"):flatten():tolist()) do
      list[#list + 1] = value
    end
  end
  return list, model, optimizer
end

local function largest_difference(a, b)
  local most = 0
  for i, value in ipairs(a) do most = math.max(most, math.abs(value - b[i])) end
  return most
end

local function accumulation()
  local whole, parts = trained(3, 1), trained(3, 4)
  local difference = largest_difference(whole, parts)
  local bound = accelerator.mixed_precision == "no" and 1e-5 or 5e-2
  if not (difference <= bound) then
    wrong[#wrong + 1] = ("4 micro-batches and one batch differ by %g; expected at most %g"):format(difference,
      bound)
  end
  for other, theirs in ipairs(utils.gather_object { whole }) do
    expect(("the parameters of rank %d and this one differ by"):format(other - 1), 0,
      largest_difference(whole, theirs))
  end
  return ("4 micro-batches give the update of one batch (difference %.1g), and all ranks agree"):format(
    difference)
end

-- A folder that all ranks know; the main process makes and removes it.
local function shared_folder()
  local name = rank == 0 and os.tmpname() or ""
  if rank == 0 then os.remove(name) end
  return utils.gather_object({ name })[1]
end

local function resuming()
  local folder, before, model, optimizer = shared_folder(), trained(2, 1)
  accelerator:save_state(folder)
  local function steps()
    for k = 1, 2 do
      local x = tensor.full({ 2, 3 }, 0.1 * k + rank):to(accelerator.device)
      accelerator:backward(model(x):pow(2):mean())
      optimizer:step()
      optimizer:zero_grad()
    end
    return model:parameters()[1]:detach():to("cpu"):to("float32"):flatten():tolist()
  end
  local first = steps()
  accelerator:load_state(folder)
  local second = steps()
  accelerator:wait_for_everyone()
  if rank == 0 then fs.remove_tree(folder) end
  expect("values after resuming differ by", 0, largest_difference(first, second))
  return ("%d parameters saved, loaded and trained on to the same bits"):format(#before)
end

-- ---- the summary

local CHECKS = { { "collectives", collectives }, { "data loaders", loaders },
  { "gradient accumulation", accumulation }, { "saving and resuming", resuming } }

accelerator:print(("accel-run test: %d rank%s on %s, mixed precision %s"):format(ranks, ranks == 1 and ""
  or "s",
  accelerator.device:match "^%a+", accelerator.mixed_precision))
local failed = 0
for _, check in ipairs(CHECKS) do
  local began = os.clock()
  wrong = {}
  local ok, found = pcall(check[2])
  accelerator:free_memory()
  if not ok then wrong[#wrong + 1] = tostring(found) end
  local bad = {}
  for other, report in ipairs(utils.gather_object { { #wrong == 0, table.concat(wrong, "; ") } }) do
    if not report[1] then bad[#bad + 1] = ("rank %d: %s"):format(other - 1, report[2]) end
  end
  failed = failed + (#bad > 0 and 1 or 0)
  accelerator:print(("  %-6s %-22s %s"):format(#bad == 0 and "ok" or "FAILED", check[1],
    #bad == 0 and ("%s (%.2f s)"):format(tostring(found), os.clock() - began)
    or table.concat(bad, "\n" .. (" "):rep(32))))
end
accelerator:wait_for_everyone()
if failed == 0 then accelerator:print "accel-run test: all is well; runs with these settings can start" end
if failed > 0 and rank == 0 then error(("%d of %d checks failed"):format(failed, #CHECKS), 0) end
