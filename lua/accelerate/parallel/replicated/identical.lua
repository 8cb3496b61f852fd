--- Checks that the ranks' copies of a model are still the same to the bit. A processor or memory
--- that computes wrongly shows here, long before the loss does.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local records = require "accelerate.parallel.record"

local fail = options.fail

local M = {}

-- The parameters that all ranks have alike, in order: { name, parameter }.
local function shared(models)
  local list = {}
  for i, model in ipairs(models) do
    local one = records.of(model)
    if not one.local_only and one.strategy.plan.values ~= "cut" then
      for name, p in model:named_parameters() do
        list[#list + 1] = { #models > 1 and ("'%s' of model %d"):format(name, i) or ("'%s'"):format(name), p }
      end
    end
  end
  return list
end

-- Ranks by what they have, the largest group first; a group begins with its lowest rank.
local function groups_of(sums)
  local groups, of = {}, {}
  for r, sum in ipairs(sums) do
    if not of[sum] then
      of[sum] = {}
      groups[#groups + 1] = of[sum]
    end
    table.insert(of[sum], r - 1)
  end
  table.sort(groups, function(a, b)
    if #a ~= #b then return #a > #b end
    return a[1] < b[1]
  end)
  return groups
end

local function ranks(group)
  return (#group == 1 and "rank " or "ranks ") .. table.concat(group, ", ")
end

-- "first 'fc.weight': 3 of 600 elements, by up to 0.25", between the lowest ranks of two groups.
local function first_difference(list, a, b)
  for _, entry in ipairs(list) do
    local sums = core.dist.all_gather_bytes(tostring(core._checksum { entry[2] }))
    if sums[a + 1] ~= sums[b + 1] then
      local p = entry[2]:detach():reshape(-1)
      local all = core.dist.all_gather(p:contiguous()):reshape(#sums, -1):to("float64")
      local distance = (all[a + 1] - all[b + 1]):abs()
      return ("first %s: %d of %d elements, by up to %g"):format(entry[1],
        all[a + 1]:ne(all[b + 1]):sum():item(), p:numel(), distance:max():item())
    end
  end
end

--- Compares a checksum (CRC-32C) of the parameters' bytes between ranks. Parameters of a device are
--- copied to the host for it. A collective. Raises on all ranks where they differ, and names the
--- ranks that differ from most others, and the first parameter.
---@param models accelerate.nn.Module[] prepared; what LocalSGD trains is left out
---@param when string "after 20 optimizer steps"
function M.check(models, when)
  local list, tensors = shared(models), {}
  local first = #list == 0 and #models > 0 and records.of(models[1]).strategy
  if first and not first.replicas then
    fail("check_replicas: the model is cut over ranks (%s), which have no replicas to compare; leave it out",
      first.plan.name)
  end
  for i, entry in ipairs(list) do tensors[i] = entry[2] end
  local sums = core.dist.all_gather_bytes(tostring(core._checksum(tensors)))
  local groups = groups_of(sums)
  if #groups == 1 then return end
  local how = first_difference(list, groups[1][1], groups[2][1])
  if #groups[1] == #groups[2] then
    local names = {}
    for i, group in ipairs(groups) do names[i] = ranks(group) end
    fail("check_replicas: %s the parameters differ between %s; %s", when, table.concat(names, " and "), how)
  end
  local odd = {}
  for i = 2, #groups do
    for _, r in ipairs(groups[i]) do odd[#odd + 1] = r end
  end
  table.sort(odd)
  fail("check_replicas: %s the parameters of %s differ from those of the other %d; %s", when, ranks(odd),
    #groups[1], how)
end

return M
