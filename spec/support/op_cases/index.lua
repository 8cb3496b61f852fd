--- Cases of the rows in host/core/ops/index.def.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local each, flat, shaped = H.each, H.flat, H.shaped

local PICK = { 2, 0, 2 }
shaped("index_select", function(x) return x:index_select(2, tensor.tensor(PICK, { dtype = "int64" })) end,
  function(x) return each(x, function(r) return { r[3], r[1], r[3] } end) end)
C._index_select_backward = { through = "index_select" }
shaped("masked_select", function(x) return x:masked_select(x.data:gt(0)) end, function(x)
  local out = {}
  for _, v in ipairs(flat(x)) do if v > 0 then out[#out + 1] = v end end
  return out
end)
C._mask_indices = { through = "masked_select" }

-- ---- plain references over a 3 x 4 matrix

local function copied(x) return each(x, function(r) return { unpack(r) } end) end

-- Calls put(result, row, column, i, j) for each (i, j) of the index, whose entries name positions
-- of dim.
local function placed(x, dim, index, put)
  local out = copied(x)
  for i = 1, #index do
    for j = 1, #index[i] do
      put(out, dim == 1 and index[i][j] + 1 or i, dim == 2 and index[i][j] + 1 or j, i, j)
    end
  end
  return out
end

local ACROSS, DOWN = { { 3, 0 }, { 1, 2 }, { 0, 1 } }, { { 2, 0, 1, 1 }, { 0, 2, 2, 0 } }
local REPEATED = { { 3, 3 }, { 1, 2 }, { 0, 0 } }
local function int64(v) return H.int64(v) end

shaped("gather", function(x) return x:gather(2, int64(REPEATED)), x:gather(1, int64(DOWN)) end, function(x)
  return { { x[1][4], x[1][4] }, { x[2][2], x[2][3] }, { x[3][1], x[3][1] } },
    { { x[3][1], x[1][2], x[2][3], x[2][4] }, { x[1][1], x[3][2], x[3][3], x[1][4] } }
end)
C._gather_backward = { through = "gather" }
shaped("take_along_dim",
  function(x)
    return x:take_along_dim(int64 { { 3, 1 } }, 2), x:take_along_dim(int64 { 11, 0, 0 })
  end, function(x)
  return each(x, function(r) return { r[4], r[2] } end), { x[3][4], x[1][1], x[1][1] }
end)

local function writer(name, call, ref, source)
  C[name] = { inputs = { H.range(-2, 2), source and H.range(-2, 2, source) or nil }, call = call, ref = ref }
end
writer("scatter", function(x, s) return x:scatter(2, int64(ACROSS), s), x:scatter(1, int64(DOWN), 0.5) end,
  function(x, s)
  return placed(x, 2, ACROSS, function(out, r, c, i, j) out[r][c] = s[i][j] end),
    placed(x, 1, DOWN, function(out, r, c) out[r][c] = 0.5 end)
end, { 3, 2 })
writer("scatter_add", function(x, s) return x:scatter_add(2, int64(REPEATED), s) end, function(x, s)
  return placed(x, 2, REPEATED, function(out, r, c, i, j) out[r][c] = out[r][c] + s[i][j] end)
end, { 3, 2 })
local scatter_reduce = core._row "_scatter_reduce"
local function larger(a, b) return a > b and a or b end
writer("_scatter_reduce", function(x, s)
  return scatter_reduce(x, 2, int64(REPEATED), s, "prod"), scatter_reduce(x, 2, int64(REPEATED), s, "amax"),
    scatter_reduce(x, 2, int64(REPEATED), s, "amin")
end, function(x, s)
  local function reduced(f)
    return placed(x, 2, REPEATED, function(out, r, c, i, j) out[r][c] = f(out[r][c], s[i][j]) end)
  end
  return reduced(function(a, b) return a * b end), reduced(larger),
    reduced(function(a, b) return -larger(-a, -b) end)
end, { 3, 2 })
local ROWS = { 2, 0 }
writer("index_add", function(x, s) return x:index_add(1, int64 { 2, 2 }, s, -0.5) end, function(x, s)
  local out = copied(x)
  for j = 1, 4 do out[3][j] = out[3][j] - 0.5 * s[1][j] - 0.5 * s[2][j] end
  return out
end, { 2, 4 })
writer("index_copy", function(x, s) return x:index_copy(1, int64(ROWS), s) end,
  function(x, s) return { s[2], x[2], s[1] } end, { 2, 4 })
writer("index_fill", function(x) return x:index_fill(2, int64 { 1, 1 }, 7) end, function(x)
  return each(x, function(r) return { r[1], 7, r[3], r[4] } end)
end)
writer("masked_scatter",
  function(x, s) return x:masked_scatter(core.tensor({ true, false, true, false }), s) end, function(x, s)
  local f = flat(s)
  return { { f[1], x[1][2], f[2], x[1][4] }, { f[3], x[2][2], f[4], x[2][4] },
    { f[5], x[3][2], f[6], x[3][4] } }
end, { 4, 2 })

shaped("embedding",
  function(x)
    return core.embedding(int64 { { 2, 0 }, { 2, 2 } }, x), core.embedding(int64 { 1, 0 }, x, 1)
  end, function(x)
  return { { x[3], x[1] }, { x[3], x[3] } }, { x[2], x[1] }
end)
-- padding_idx: the gradient is not that of the values; see spec/kernels/index_spec.lua
C.embedding.no_differences = true
C._embedding_backward = { through = "embedding" }

local function plain(name, call, ref)
  shaped(name, call, ref)
  C[name].exact = true
end
plain("one_hot", function() return core.one_hot(int64 { 1, 0 }, 3), core.one_hot(int64 { 1 }) end,
  function() return { { 0, 1, 0 }, { 1, 0, 0 } }, { { 0, 1 } } end)
C._one_hot = { through = "one_hot" }
plain("bincount", function() return int64({ 3, 1, 1 }):bincount(), int64({ 1 }):bincount(int64 { 4 }, 3) end,
  function() return { 0, 2, 0, 1 }, { 0, 4, 0 } end)
plain("nonzero", function(x) return x:nonzero() end, function(x)
  local out = {}
  for i = 1, #x do for j = 1, #x[i] do if x[i][j] ~= 0 then out[#out + 1] = { i - 1, j - 1 } end end end
  return out
end)
C._nonzero = { through = "nonzero" }

-- ---- order (the values of the cases differ, but for those of the broadcast layout: there equals
--      keep their order)

local function ordered(list, falling)
  local at = {}
  for i = 1, #list do at[i] = i end
  table.sort(at, function(a, b)
    if list[a] == list[b] then return a < b end
    if falling then return list[a] > list[b] end
    return list[a] < list[b]
  end)
  return each(at, function(i) return list[i] end), each(at, function(i) return i - 1 end)
end
local function turned(x) return H.columns(x) end
local function first(list, n) return { unpack(list, 1, n) } end

shaped("sort", function(x) return (x:sort(1, true)), x:sort(2) end, function(x)
  return turned(each(turned(x), function(c) return (ordered(c, true)) end)),
    each(x, function(r) return (ordered(r)) end), each(x, function(r) return (select(2, ordered(r))) end)
end)
plain("argsort", function(x) return x:argsort(1) end,
  function(x) return turned(each(turned(x), function(c) return (select(2, ordered(c))) end)) end)
shaped("topk", function(x) return x:topk(2) end, function(x)
  return each(x, function(r) return first((ordered(r, true)), 2) end),
    each(x, function(r) return first((select(2, ordered(r, true))), 2) end)
end)
shaped("kthvalue", function(x) return (x:kthvalue(3, 1, true)), x:kthvalue(2) end, function(x)
  return { each(turned(x), function(c) return (ordered(c))[3] end) },
    each(x, function(r) return (ordered(r))[2] end),
    each(x, function(r) return (select(2, ordered(r)))[2] end)
end)
shaped("median", function(x) return (x:median()), x:median(2) end, function(x)
  return (ordered(flat(x)))[6], each(x, function(r) return (ordered(r))[2] end),
    each(x, function(r) return (select(2, ordered(r)))[2] end)
end)
C._median = { through = "median" }
local BOUNDS = { -1, 0, 0.5, 1 }
local function bucket(v)
  local n = 0
  for _, b in ipairs(BOUNDS) do if b < v then n = n + 1 end end
  return n
end
local function buckets(x) return each(x, function(r) return each(r, bucket) end) end
plain("searchsorted", function(x) return core.searchsorted(core.tensor(BOUNDS):to(x.dtype), x) end, buckets)
plain("bucketize", function(x) return core.bucketize(x, core.tensor(BOUNDS):to(x.dtype)) end, buckets)
plain("unique", function() return int64({ 3, 1, 3, 0 }):unique(true, true, true) end,
  function() return { 0, 1, 3 }, { 2, 1, 2, 0 }, { 1, 1, 2 } end)
plain("isin", function() return int64({ 3, 1, 3, 0 }):isin(int64 { { 3, 7 } }) end,
  function() return { true, false, true, false } end)
