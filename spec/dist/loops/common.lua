--- What the loops have in common: their data set, their network, how they report, and the same
--- training written out by hand on one process, against which they are compared.
local core = require "accelerate.core"
local data = require "accelerate.data"
local layouts = require "spec.support.layouts"
local nn = require "accelerate.nn"

local M = {}

M.GLOBAL_BATCH = 12  -- of all ranks together
M.EPOCHS = 2
M.CLASSES = 4

--- `length` rows of 6 numbers and their classes.  A third column says which row it is.
function M.dataset(length)
  local x, y, at = {}, {}, {}
  for i = 1, length do
    x[i] = {}
    for k = 1, 6 do x[i][k] = math.sin(i * 1.3 + k * k * 0.7) end
    y[i], at[i] = (i * i + 3) % M.CLASSES, i
  end
  return data.TensorDataset(core.tensor(x), core.tensor(y, { dtype = "int64" }),
    core.tensor(at, { dtype = "int64" }))
end

--- The same network, with the same weights, at each call.
function M.network()
  core.manual_seed(5)
  return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, M.CLASSES))
end

--- All weights as numbers.
function M.values(model)
  local values = {}
  for _, p in ipairs(model:parameters()) do
    for _, v in ipairs(p:detach():float():reshape(-1):totable()) do values[#values + 1] = v end
  end
  return values
end

--- The rows of each step of an epoch, as lists of positions.  `filled`: the last list is filled up
--- from the start of the order, as it is on several ranks.
function M.rounds(order, filled)
  local rounds, size = {}, M.GLOBAL_BATCH
  for from = 1, #order, size do
    local rows = {}
    for i = from, filled and from + size - 1 or math.min(from + size - 1, #order) do
      rows[#rows + 1] = order[(i - 1) % #order + 1]
    end
    rounds[#rounds + 1] = rows
  end
  return rounds
end

local function in_order(length)
  local order = {}
  for i = 1, length do order[i] = i end
  return order
end

--- Trains by hand.
---@param length integer of the data set
---@param filled boolean see rounds
---@param o { optimizer: fun(params): table, schedule: (fun(optimizer): table)?, moves: integer?,
---  window: integer?, clip: (fun(params))?, forward: (fun(model, x): accelerate.Tensor)?, orders:
---  integer[][]?, stop: (fun(rows: integer[]): boolean)? }
---@return number[] values, integer steps, accelerate.nn.Module model
function M.by_hand(length, filled, o)
  local x, y = unpack(M.dataset(length).tensors)
  local model = M.network()
  -- as prepare does: sums of gradients in lower types are not rounded to them
  if o.forward then layouts.give_slots(model:parameters()) end
  local optimizer = o.optimizer(model:parameters())
  local schedule = o.schedule and o.schedule(optimizer)
  local steps, window = 0, o.window or 1
  for epoch = 1, M.EPOCHS do
    local rounds = M.rounds(o.orders and o.orders[epoch] or in_order(length), filled)
    for at, rows in ipairs(rounds) do
      local index = {}
      for i, row in ipairs(rows) do index[i] = row - 1 end
      index = core.tensor(index, { dtype = "int64" })
      local input = x:index_select(1, index)
      local out = o.forward and o.forward(model, input) or model(input)
      local loss = nn.functional.cross_entropy(out, y:index_select(1, index)) / window
      loss:backward()
      if at % window == 0 or at == #rounds then
        if o.clip then o.clip(model:parameters()) end
        optimizer:step()
        for _ = 1, schedule and (o.moves or 1) or 0 do schedule:step() end
        optimizer:zero_grad()
      end
      steps = steps + 1
      if o.stop and o.stop(rows) then return M.values(model), steps, model end
    end
  end
  return M.values(model), steps, model
end

return M
