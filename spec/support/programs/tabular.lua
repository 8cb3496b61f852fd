-- Regression on a table: k folds, standardised columns, early stopping, R squared.
local accelerate = require "accelerate"
local nn, optim, data, tensor = accelerate.nn, accelerate.optim, accelerate.data, accelerate.tensor
accelerate.utils.set_seed(3)

local path = os.tmpname()
local file = assert(io.open(path, "w"))
file:write("rooms,age,distance,price\n")
for _ = 1, 400 do
  local rooms, age, distance = math.random(2, 8), math.random(0, 80), math.random() * 20
  local price = 30 * rooms - 0.5 * age - 3 * distance + math.random() * 5
  file:write(("%d,%d,%.2f,%.3f\n"):format(rooms, age, distance, price))
end
file:close()

local frame = data.read_csv(path)
print(#frame, table.concat(frame.column_names, " "))
local names = { "rooms", "age", "distance" }
local columns = {}
for i, name in ipairs(names) do columns[i] = frame[name]:float() end
local x = tensor.stack(columns, 2)
local y = frame.price:float():unsqueeze(2)
print(x.shape, y.shape, x.dtype)

local k = 4
local order = tensor.randperm(#frame)
local folds = { order:chunk(k) }

local scores = {}
for fold = 1, k do
  local rest = {}
  for i = 1, k do if i ~= fold then rest[#rest + 1] = folds[i] end end
  local train_ids, test_ids = tensor.cat(rest), folds[fold]
  local x_train, y_train = x:index_select(1, train_ids), y:index_select(1, train_ids)
  local x_test, y_test = x:index_select(1, test_ids), y:index_select(1, test_ids)
  local mean, std = x_train:mean(1), x_train:std(1)
  local y_mean, y_std = y_train:mean(), y_train:std()
  local function scaled(t) return (t - mean) / (std + 1e-8) end

  local model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
  local optimizer = optim.Adam(model:parameters(), { lr = 1e-2 })
  local set = data.TensorDataset(scaled(x_train), (y_train - y_mean) / y_std)
  local loader = data.DataLoader(set, { batch_size = 32, shuffle = true })
  local accelerator = accelerate.Accelerator()
  model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
  local loss_fn = nn.MSELoss()
  local best, patience, best_state = math.huge, 0, nil
  for epoch = 1, 30 do
    model:train()
    for xb, yb in loader:iter() do
      optimizer:zero_grad()
      local loss = loss_fn(model(xb), yb)
      accelerator:backward(loss)
      optimizer:step()
    end
    model:eval()
    local valid = tensor.no_grad(function()
      return loss_fn(model(scaled(x_test)), (y_test - y_mean) / y_std):item()
    end)
    if valid < best - 1e-4 then
      best, patience = valid, 0
      best_state = {}
      for name, value in pairs(model:state_dict()) do best_state[name] = value:clone() end
    else
      patience = patience + 1
      if patience >= 5 then break end
    end
  end
  model:load_state_dict(best_state)
  local predicted = tensor.no_grad(model, scaled(x_test)) * y_std + y_mean
  local r2 = 1 - ((y_test - predicted) ^ 2):sum() / ((y_test - y_test:mean()) ^ 2):sum()
  scores[fold] = r2:item()
  accelerator:free_memory()
end
local t = tensor.tensor(scores)
print(("R2 %.4f +- %.4f"):format(t:mean():item(), t:std():item()))
os.remove(path)
