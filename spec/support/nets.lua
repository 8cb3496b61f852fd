--- What specs of modules share: a small net, the names that its iterators give, the numbers of
--- tensors.
local assert = require "luassert"
local core = require "accelerate.core"
local nn = require "accelerate.nn"

local M = {}

--- Returns the names that an iterator gives, in order.
function M.names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return list
end

--- Returns the elements of a tensor of any shape.
function M.numbers(t) return t:detach():flatten():totable() end

--- Fails unless the elements of t are the expected numbers, within `tolerance`, default 1e-6.
function M.near(expected, t, tolerance)
  local list = M.numbers(t)
  assert.equal(#expected, #list)
  for i, v in ipairs(expected) do assert.near(v, list[i], tolerance or 1e-6) end
end

--- Fails unless the elements of t are the expected numbers, within 1e-5 of those above 1.
function M.close(expected, t)
  local list = M.numbers(t)
  assert.equal(#expected, #list)
  for i, v in ipairs(expected) do
    assert.is_true(math.abs(list[i] - v) <= 1e-5 * math.max(1, math.abs(v)),
      ("%d: got %.9g, expected %.9g"):format(i, list[i], v))
  end
end

--- Two layers whose order is not that of the pass, a parameter and a buffer.
local Net = nn.class("Net")
M.Net = Net

function Net:init(width)
  self.width = width
  self.fc2 = nn.Linear(width, 3)
  self.fc1 = nn.Linear(2, width)
  self.scale = nn.Parameter(core.ones(1))
  self:register_buffer("count", core.zeros(1, { dtype = "int64" }))
end

function Net:forward(x) return self.fc2(self.fc1(x):relu()) * self.scale end

return M
