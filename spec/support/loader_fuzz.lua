--- Loaders at random, and what must hold for all of them; see accelerate/data_loader_fuzz_spec.lua.
local core = require "accelerate.core"
local data = require "accelerate.data"
local data_loader = require "accelerate.data_loader"

local M = {}

--- A case: what is read, how, by how many ranks.
---@param draw fun(low: integer, high: integer): integer
---@param ranks_here integer? default: any
function M.random_case(draw, ranks_here)
  local case = {
    n = draw(0, 40), ranks = ranks_here or draw(1, 4), size = draw(1, 9), split = draw(0, 3) == 0,
    even = draw(0, 3) > 0,
    drop = draw(0, 3) == 0, shuffle = draw(0, 1) == 0, seedable = draw(0, 3) == 0, stream = draw(0, 2) == 0,
    own = draw(0, 4) == 0,
    skip = draw(0, 2) == 0 and draw(0, 5) or 0, dispatch = draw(0, 1) == 0, workers = draw(0, 19) == 0 and 1
      or 0,
  }
  if case.split then case.size = case.ranks * draw(1, 4) end
  if case.stream then case.shuffle, case.own, case.even = false, false, true end
  return case
end

local function describe(case)
  local words = {}
  for key, value in pairs(case) do words[#words + 1] = ("%s=%s"):format(key, tostring(value)) end
  table.sort(words)
  return table.concat(words, " ")
end

--- Whole numbers that depend on the seed alone.
function M.drawer(seed)
  local generator = core.Generator(seed)
  return function(low, high) return core.randint(low, high + 1, { 1 }, { generator = generator }):item() end
end

local function stream_of(n)
  return { iter = function()
    local i = -1
    return function()
      i = i + 1
      if i < n then return i end
    end
  end }
end

--- The loader of a case, not prepared.
function M.build(case)
  if case.stream then
    return data.DataLoader(stream_of(case.n),
      { batch_size = case.size, drop_last = case.drop, num_workers = case.workers })
  end
  local set = data.TensorDataset(core.arange(case.n))
  if not case.own then return data.DataLoader(set, { batch_size = case.size, drop_last = case.drop,
    shuffle = case.shuffle, num_workers = case.workers }) end
  local batches = {} -- a batch sampler that cannot seek
  for from = 1, case.n, case.size do
    local batch = {}
    for i = from, math.min(from + case.size - 1, case.n) do batch[#batch + 1] = i end
    if not case.drop or #batch == case.size then batches[#batches + 1] = batch end
  end
  return data.DataLoader(set,
    { batch_sampler = { batch_size = case.size, drop_last = case.drop, len = function() return #batches end,
    iter = function()
      local k = 0
      return function()
        k = k + 1
        return batches[k]
      end
    end } })
end

--- What a rank would get, and the remainder of its last batch, without other processes.
function M.run(case, rank)
  local loader = data_loader.prepare_data_loader(M.build(case), {
    num_processes = case.ranks, process_index = rank, split_batches = case.split, even_batches = case.even,
    use_seedable_sampler = case.seedable, data_seed = 5,
  })
  if case.skip > 0 then loader = data_loader.skip_first_batches(loader, case.skip) end
  local batches, remainder = {}, 0
  for x in loader:iter() do
    batches[#batches + 1] = x:totable()
    remainder = loader.remainder
  end
  if not case.stream and not (case.split and not case.even) then
    assert(loader:len() == #batches, ("%s: %d batches, len() is %d"):format(describe(case), #batches,
      loader:len()))
  end
  return batches, remainder
end

--- Checks the batches of all ranks of a case: by_rank[r] is a list of them.
function M.check(case, by_rank, remainder)
  local at = describe(case)
  local total = case.split and case.size or case.size * case.ranks
  local steps = 0
  for _, batches in ipairs(by_rank) do steps = math.max(steps, #batches) end
  local seen, order = {}, {}
  for step = 1, steps do
    local round = {}
    for _, batches in ipairs(by_rank) do
      for _, v in ipairs(batches[step] or {}) do round[#round + 1] = v end
    end
    if case.ranks > 1 and case.even and step == steps and not case.drop then -- what gather_for_metrics cuts
      assert(remainder >= 0, at)
      while remainder > 0 and #round > remainder do table.remove(round) end
    end
    for _, v in ipairs(round) do order[#order + 1] = v end
  end
  for _, v in ipairs(order) do
    assert(not seen[v], at .. ": item " .. v .. " twice")
    assert(v >= 0 and v < case.n)
    seen[v] = true
  end
  local whole = case.drop and math.floor(case.n / total) * total or case.n
  local expected = math.max(0, whole - case.skip * total)
  assert(#order == expected, ("%s: %d items, expected %d"):format(at, #order, expected))
  if case.even or case.drop then -- ranks are in step
    for _, batches in ipairs(by_rank) do
      assert(#batches == steps, at .. ": ranks have different numbers of batches")
      for k, batch in ipairs(batches) do
        assert(#batch == #by_rank[1][k], at .. ": batches of different sizes")
      end
    end
  end
  if not case.shuffle then
    for i, v in ipairs(order) do
      assert(v == case.n - #order + i - 1 or case.drop and v == case.skip * total + i - 1, at .. ": order")
    end
  end
end


local function numbers(list) return table.concat(list, " ") end

--- Runs cases on the ranks that there are: what is gathered for metrics must be every item once,
--- also by a loader that goes on where another one was.
---@param count integer
---@param seed integer
---@return integer batches how many were gathered
function M.on_ranks(count, seed)
  local accelerate = require "accelerate"
  local draw, ranks, gathered = M.drawer(seed), core.dist.world_size(), 0
  for _ = 1, count do
    local case = M.random_case(draw, ranks)
    case.even = true -- or ranks would not be in step
    local function prepare()
      core.manual_seed(9)
      local accelerator = accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration {
        split_batches = case.split, dispatch_batches = case.dispatch, use_seedable_sampler = case.seedable,
        data_seed = 5 } }
      return accelerator:prepare(M.build(case)), accelerator
    end
    local loader, accelerator = prepare()
    if case.skip > 0 then loader = accelerator:skip_first_batches(loader, case.skip) end
    local stop, found, parts = draw(1, 4), nil, {}
    for x in loader:iter() do
      parts[#parts + 1] = numbers(accelerator:gather_for_metrics(x):totable())
      if #parts == stop then found = loader:state_dict() end
    end
    gathered = gathered + #parts
    local order = {}
    for word in table.concat(parts, " "):gmatch("%d+") do order[#order + 1] = tonumber(word) end
    M.check(case, { { order } }, 0)
    if found and #parts > stop then
      local again, second = prepare()
      again:load_state_dict(found)
      local rest = {}
      for x in again:iter() do rest[#rest + 1] = numbers(second:gather_for_metrics(x):totable()) end
      assert(table.concat(rest, "|") == table.concat(parts, "|", stop + 1),
        ("%s: resumed at %d: %s, expected %s"):format(describe(case), stop, table.concat(rest, "|"),
        table.concat(parts, "|", stop + 1)))
    end
  end
  return gathered
end

--- Calls of prepared loaders in any order, the same on all ranks: passes begun, left and gone on
--- with, states saved and loaded, epochs set, beginnings left out.  Raises when one of them does.
---@param steps integer
---@param seed integer
function M.any_order(steps, seed)
  local accelerate = require "accelerate"
  local draw = M.drawer(seed)
  local accelerator = accelerate.Accelerator()
  local function make()
    local case = M.random_case(draw, core.dist.world_size())
    local config = { dispatch_batches = case.dispatch or nil, use_seedable_sampler = case.seedable,
      split_batches = case.split }
    return accelerate.Accelerator { dataloader_config = accelerate.DataLoaderConfiguration(config) }:prepare(
      M.build(case))
  end
  local loaders, passes, states = { make(), make(), make() }, {}, {}
  local calls = {
    function(i) loaders[i], passes[i], states[i] = make(), nil, nil end,
    function(i) passes[i] = loaders[i]:iter() end,
    function(i)
      for _ = 1, 3 do
        if passes[i] and passes[i]() == nil then passes[i] = nil end
      end
    end,
    function(i) states[i] = loaders[i]:state_dict() end,
    function(i) if states[i] then loaders[i]:load_state_dict(states[i]) end end,
    function(i) loaders[i] = accelerator:skip_first_batches(loaders[i], draw(0, 2)) end,
    function(i) loaders[i]:set_epoch(draw(0, 3)) end,
    function(i)
      for _ in loaders[i]:iter() do
        if draw(1, 5) == 1 then break end
      end
    end,
  }
  for _ = 1, steps do
    calls[draw(1, #calls)](draw(1, 3))
    assert(type(accelerator.gradient_state.remainder) == "number")
  end
end

return M
