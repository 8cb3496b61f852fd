--- Finds the tensors that share memory, and the pieces of it that go into a file.
---
--- Tensors that overlap are written as one piece, and are views of it again after loading. Tensors
--- that do not overlap are written separately, also from one storage: each parameter of a flat
--- buffer is a piece, and a row of a large matrix is written without the rest of it.
local M = {}

-- The bytes from the first to the last element, and a name of the memory that they are counted in.
-- A tensor whose memory is away (it is deferred, say) overlaps with views of its storage alone.
local function extent(t)
  local reach, size = 1, t:element_size()
  local shape, strides = t.shape, t:stride()
  for d = 1, #shape do reach = reach + (shape[d] - 1) * strides[d] end
  local first, is_away = t:_address()
  local memory = t.device .. t.dtype
  if is_away then memory = memory .. first - t:storage_offset() * size end
  return first, first + reach * size, memory
end

local function same_form(a, b)
  if a.first ~= b.first or #a.shape ~= #b.shape then return false end
  for d = 1, #a.shape do
    if a.shape[d] ~= b.shape[d] or (a.shape[d] > 1 and a.strides[d] ~= b.strides[d]) then return false end
  end
  return true
end

-- Runs of overlapping entries: a sweep over the entries in the order of their first bytes.
local function groups_of(entries)
  local sorted, groups = {}, {}
  for i, e in ipairs(entries) do sorted[i] = e end
  table.sort(sorted, function(a, b)
    if a.memory ~= b.memory then return a.memory < b.memory end
    if a.first ~= b.first then return a.first < b.first end
    return a.number < b.number
  end)
  local group
  for _, e in ipairs(sorted) do
    if group and group.memory == e.memory and e.first < group.last then
      group[#group + 1] = e
      group.last = math.max(group.last, e.last)
    else
      group = { e, memory = e.memory, first = e.first, last = e.last }
      groups[#groups + 1] = group
    end
  end
  return groups
end

-- The piece that holds all of a group: a contiguous member that covers it, so that it has a shape
-- that means something, or else the elements from the first to the last.
local function piece_of(group)
  table.sort(group, function(a, b) return a.number < b.number end)
  local all_same, whole = true, nil
  for _, e in ipairs(group) do
    all_same = all_same and same_form(e, group[1])
    if not whole and e.first == group.first and e.last == group.last and e.tensor:is_contiguous() then
      whole = e
    end
  end
  if all_same then whole = group[1] end
  if whole then return whole.tensor, whole end
  local e = group[1]
  local size = e.tensor:element_size()
  return e.tensor:_window({ (group.last - group.first) / size }, { 1 },
    e.tensor:storage_offset() - (e.first - group.first) / size)
end

---@class accelerate.files.View where a tensor is found again
---@field piece integer
---@field shape integer[]? nil: the piece itself
---@field strides integer[]?
---@field offset integer? elements of the piece, from 0

--- Returns the pieces that hold the elements of different tensors, in the order of the first tensor
--- of each, and for each tensor where it is found in them.
---@param tensors accelerate.Tensor[]
---@return { tensor: accelerate.Tensor, owner: integer }[] pieces owner: place of a tensor of it in
---  the list
---@return accelerate.files.View[] views
function M.of(tensors)
  local entries, groups = {}, {}
  for i, t in ipairs(tensors) do
    if t:numel() == 0 then
      groups[#groups + 1] = { { tensor = t, number = i, shape = {}, strides = {}, first = 0 }, first = 0 }
    else
      local first, last, memory = extent(t)
      entries[#entries + 1] = { tensor = t, number = i, first = first, last = last, shape = t.shape,
        strides = t:stride(), memory = memory }
    end
  end
  for _, group in ipairs(groups_of(entries)) do groups[#groups + 1] = group end
  for _, group in ipairs(groups) do group.piece, group.whole = piece_of(group) end
  table.sort(groups, function(a, b) return a[1].number < b[1].number end)
  local pieces, views = {}, {}
  for i, group in ipairs(groups) do
    pieces[i] = { tensor = group.piece, owner = (group.whole or group[1]).number }
    for _, e in ipairs(group) do
      local view = { piece = i }
      if not group.whole or not same_form(e, group.whole) then
        view.shape, view.strides = e.shape, e.strides
        view.offset = (e.first - group.first) / e.tensor:element_size()
      end
      views[e.number] = view
    end
  end
  return pieces, views
end

--- Returns the tensors of `views` over the pieces that `read(i)` gives, each made once.
---@param read fun(piece: integer): accelerate.Tensor contiguous, from the start of its storage
---@return fun(view: accelerate.files.View): accelerate.Tensor
function M.finder(read)
  local loaded, handed = {}, {}
  return function(view)
    local piece = loaded[view.piece]
    if not piece then
      piece = read(view.piece)
      loaded[view.piece] = piece
    end
    if view.shape then return piece:_window(view.shape, view.strides, view.offset) end
    if handed[view.piece] then return piece:detach() end
    handed[view.piece] = true
    return piece
  end
end

return M
