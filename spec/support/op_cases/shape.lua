--- Cases of the rows in host/core/ops/shape.def and view.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, columns, each, flat, shaped = H.range, H.columns, H.each, H.flat, H.shaped

shaped("view", function(x) return x:contiguous():view(2, -1) end, function(x)
  local f = flat(x)
  return { { unpack(f, 1, 6) }, { unpack(f, 7, 12) } }
end)
shaped("reshape", function(x) return x:reshape(-1) end, flat)
shaped("flatten", function(x) return x:unsqueeze(1):flatten { start_dim = 2 } end,
  function(x) return { flat(x) } end)
shaped("contiguous", function(x) return x:t():contiguous() end, columns)
shaped("t", function(x) return x:t() end, columns)
shaped("permute", function(x) return x:permute(2, 1) end, columns)
shaped("transpose", function(x) return x:transpose(1, -1) end, columns)
shaped("expand", function(x) return x:unsqueeze(1):expand(2, -1, 4) end, function(x) return { x, x } end)
shaped("squeeze", function(x) return x:unsqueeze(2):squeeze(2) end, function(x) return x end)
shaped("unsqueeze", function(x) return x:unsqueeze(-1) end,
  function(x) return each(x, function(r) return each(r, function(v) return { v } end) end) end)
shaped("select", function(x) return x:select(2, -1) end,
  function(x) return each(x, function(r) return r[#r] end) end)
shaped("narrow", function(x) return x:narrow(2, 2, 2) end,
  function(x) return each(x, function(r) return { r[2], r[3] } end) end)
shaped("_slice", function(x) return x[{ {}, { 1, 4, 2 } }] end,
  function(x) return each(x, function(r) return { r[1], r[3] } end) end)
shaped("diagonal", function(x) return x:diagonal(), x:diagonal(-1, 2, 1) end,
  function(x) return { x[1][1], x[2][2], x[3][3] }, { x[1][2], x[2][3], x[3][4] } end)
C._slice_backward = { through = "narrow" }
C._diagonal_backward = { through = "diagonal" }
C.cat = { inputs = { range(-2, 2), range(-2, 2, { 3, 2 }) },
  call = function(a, b) return core.cat({ a, b }, 2) end,
  ref = function(a, b)
    local out = {}
    for i = 1, 3 do out[i] = { a[i][1], a[i][2], a[i][3], a[i][4], b[i][1], b[i][2] } end
    return out
  end }
C.stack = { inputs = { range(-2, 2), range(-2, 2) }, call = function(a, b) return core.stack { a, b } end,
  ref = function(a, b) return { a, b } end }

-- Element (i, j) of a new matrix, for i in 1..rows and j in 1..cols.
local function grid(rows, cols, f)
  local out = {}
  for i = 1, rows do
    out[i] = {}
    for j = 1, cols do out[i][j] = f(i, j) end
  end
  return out
end

shaped("unflatten", function(x) return x:unflatten(2, 2, -1) end, function(x)
  return each(x, function(r) return { { r[1], r[2] }, { r[3], r[4] } } end)
end)
shaped("movedim", function(x) return x:unsqueeze(1):movedim({ 1, 3 }, { 2, 1 }) end, function(x)
  return each(columns(x), function(c) return { c } end)
end)
local function as_other(name, like) shaped(name, function(x)
  return core[name](x:contiguous(), core.zeros(like))
end, function(x)
  return grid(like[1], like[2], function(i, j) return flat(x)[(i - 1) * like[2] + j] end)
end) end
as_other("view_as", { 6, 2 })
as_other("reshape_as", { 2, 6 })
shaped("expand_as", function(x) return x[2]:expand_as(core.zeros(2, 4)) end,
  function(x) return { x[2], x[2] } end)
shaped("diag", function(x) return x:diag(1), x[1]:diag() end, function(x)
  return { x[1][2], x[2][3], x[3][4] }, grid(4, 4, function(i, j) return i == j and x[1][i] or 0 end)
end)
shaped("diag_embed", function(x) return x[1]:diag_embed(1) end,
  function(x) return grid(5, 5, function(i, j) return j == i + 1 and x[1][i] or 0 end) end)
shaped("split", function(x) return x:split(3, 2) end, function(x)
  return each(x, function(r) return { r[1], r[2], r[3] } end), each(x, function(r) return { r[4] } end)
end)
shaped("chunk", function(x) return x:chunk(2, 2) end, function(x)
  return each(x, function(r) return { r[1], r[2] } end), each(x, function(r) return { r[3], r[4] } end)
end)
shaped("unbind", function(x) return x:unbind() end, function(x) return x[1], x[2], x[3] end)
shaped("meshgrid", function(x) return core.meshgrid(x[1], x[2]) end, function(x)
  return grid(4, 4, function(i) return x[1][i] end), grid(4, 4, function(_, j) return x[2][j] end)
end)
shaped("flip", function(x) return x:flip(1, 2) end,
  function(x) return grid(3, 4, function(i, j) return x[4 - i][5 - j] end) end)
shaped("roll", function(x) return x:roll({ 1, -1 }, { 1, 2 }), x:roll(2) end, function(x)
  local f = flat(x)
  return grid(3, 4, function(i, j) return x[(i + 1) % 3 + 1][j % 4 + 1] end),
    grid(3, 4, function(i, j) return f[((i - 1) * 4 + j + 9) % 12 + 1] end)
end)
shaped("tile", function(x) return x:tile(2, 3), x[1]:tile(2, 2) end, function(x)
  return grid(6, 12, function(i, j) return x[(i - 1) % 3 + 1][(j - 1) % 4 + 1] end),
    grid(2, 8, function(_, j) return x[1][(j - 1) % 4 + 1] end)
end)
shaped("repeat_interleave",
  function(x)
    return x:repeat_interleave(2, 1), x:repeat_interleave(H.int64 { 2, 0, 1, 1 }, 2)
  end, function(x)
  return grid(6, 4, function(i, j) return x[math.ceil(i / 2)][j] end),
    each(x, function(r) return { r[1], r[1], r[3], r[4] } end)
end)
shaped("tril", function(x) return x:tril(1) end,
  function(x) return grid(3, 4, function(i, j) return j <= i + 1 and x[i][j] or 0 end) end)
shaped("triu", function(x) return x:triu(-1) end,
  function(x) return grid(3, 4, function(i, j) return j >= i - 1 and x[i][j] or 0 end) end)
shaped("pad",
  function(x)
    return x:pad({ 1, -2, 0, 1 }, { value = 0.5 }), x:pad({ 2, 1 }, "reflect"),
      x:pad({ 0, 1, 2, 0 }, "replicate"), x:pad({ 1, 2 }, "circular")
  end,
  function(x)
    return grid(4, 3, function(i, j) return i <= 3 and j > 1 and x[i][j - 1] or 0.5 end),
      each(x, function(r) return { r[3], r[2], r[1], r[2], r[3], r[4], r[3] } end),
      grid(5, 5, function(i, j) return x[math.max(i - 2, 1)][math.min(j, 4)] end),
      each(x, function(r) return { r[4], r[1], r[2], r[3], r[4], r[1], r[2] } end)
  end)
for _, part in ipairs { "_pad_constant", "_pad_mode", "_pad_mode_backward" } do
  C[part] = { through = "pad" }
end

local function windows(row, size, step)
  local out = {}
  for from = 1, #row - size + 1, step do out[#out + 1] = { unpack(row, from, from + size - 1) } end
  return out
end
C.unfold = { inputs = { H.range(-2, 2, { 2, 5 }) },
  call = function(x) return x:unfold(2, 3, 1), x:unfold(-1, 2, 2) end,
  ref = function(x)
    return H.each(x, function(row) return windows(row, 3, 1) end),
      H.each(x, function(row) return windows(row, 2, 2) end)
  end }
C._unfold_backward = { through = "unfold" }
