--- Lua text for scripts that have `tensor`, `dist` and `rank`: every(group, count) runs each
--- collective of `accelerate.distributed` on a group, against what a loop over its ranks says.
--- Element i of rank r's tensor is r * 100 + i; tensors are on the device `where`.
return [[
local where = "cpu" -- the device
local function mine(r, count) return (tensor.arange(count):float() + 100 * r):to(where) end
local function equal(what, got, want)
  local a, b = got:totable(), want
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then
      error(("%s: element %d is %s, expected %s"):format(what, i, tostring(a[i]), tostring(b[i])))
    end
  end
end
local function every(g, count)
  local k = g.size
  local function each(fn) -- fn(r, i) over the members' elements, joined
    local list = {}
    for _, r in ipairs(g.ranks) do for i = 0, count - 1 do list[#list + 1] = fn(r, i) end end
    return list
  end
  local function over(fn, fold)
    local list = {}
    for i = 0, count - 1 do
      local acc = fn(g.ranks[1], i)
      for m = 2, k do acc = fold(acc, fn(g.ranks[m], i)) end
      list[i + 1] = acc
    end
    return list
  end
  local function value(r, i) return r * 100 + i end
  local function sum(a, b) return a + b end
  equal("all_reduce", dist.all_reduce(mine(rank, count), { group = g }), over(value, sum))
  equal("max", dist.all_reduce(mine(rank, count), { group = g, op = "max" }), over(value, math.max))
  local work = nil
  local x = mine(rank, count)
  work = dist.all_reduce(x, { group = g, async_op = true })
  work:wait()
  equal("async", x, over(value, sum))
  equal("all_gather", dist.all_gather(mine(rank, count), { group = g }), each(value))
  for m, root in ipairs(g.ranks) do
    equal("broadcast", dist.broadcast(mine(rank, count),
      { src = root, group = g }), mine(root, count):totable())
    x = dist.reduce(mine(rank, count), { dst = root, group = g })
    equal("reduce", x, root == rank and over(value, sum) or mine(rank, count):totable())
    local whole = dist.gather(mine(rank, count), { dst = root, group = g })
    if root == rank then equal("gather", whole, each(value)) else assert(whole == nil) end
    local part = dist.scatter(root == rank and mine(root, count * k) or nil, { group_src = m - 1, group = g })
    local want = {}
    for i = 0, count - 1 do want[i + 1] = root * 100 + g.rank * count + i end
    equal("scatter", part, want)
  end
  local part, want = dist.reduce_scatter(mine(rank, count * k), { group = g }), {}
  for i = 0, count - 1 do
    want[i + 1] = 0
    for _, r in ipairs(g.ranks) do want[i + 1] = want[i + 1] + r * 100 + g.rank * count + i end
  end
  equal("reduce_scatter", part, want)
  local got = dist.all_to_all(mine(rank, count * k), { group = g })
  equal("all_to_all", got, each(function(r, i) return r * 100 + g.rank * count + i end))
  -- rank a of the group gives rank b a + b rows
  local gives, gets, rows = {}, {}, 0
  for b = 0, k - 1 do
    gives[b + 1], gets[b + 1], rows = g.rank + b, b + g.rank, rows + g.rank + b
  end
  got = dist.all_to_all(mine(rank, rows), { group = g, input_split_sizes = gives, output_split_sizes = gets })
  want = {}
  for a, r in ipairs(g.ranks) do
    local before = 0
    for b = 0, g.rank - 1 do before = before + a - 1 + b end
    for i = 0, a - 1 + g.rank - 1 do want[#want + 1] = r * 100 + before + i end
  end
  equal("uneven all_to_all", got, want)
  for a = 1, k do -- everybody sends to the next one
    local to = g.ranks[a % k + 1]
    if k > 1 and g.ranks[a] == rank then dist.send(mine(rank, count), { dst = to, group = g }) end
    if k > 1 and to == rank then
      equal("recv", dist.recv(tensor.zeros(count, { device = where }), { src = g.ranks[a], group = g }),
        mine(g.ranks[a], count):totable())
    end
  end
  dist.barrier(g)
end
]]
