--- Scales of eight bits that follow from the sizes of earlier tensors: the largest size of each
--- tensor is noted as it is cast, and the next forward pass takes scales from what was noted.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"

---@class accelerate.Float8Scales
---@field amax accelerate.Tensor (3 n) the largest size since the last update: of input, weight and
---  gradient of each layer
---@field scale accelerate.Tensor (3 n)
---@field history accelerate.Tensor (length, 3 n) the latest first
local Scales = class "Float8Scales"

-- The largest numbers of the types.
local MOST = { float8_e4m3fn = 448, float8_e5m2 = 57344 }
local LARGEST = 2 ^ 126 -- its inverse is a normal number

---@param n integer layers
---@param device string
---@param recipe { forward: string, backward: string, margin: integer, interval: integer, length:
---  integer, algorithm: "max"|"most_recent" } scales are smaller by 2^margin than they could be;
---  they are taken anew at each interval-th update
function Scales:init(n, device, recipe)
  local place, most = { device = device }, {}
  for i = 1, n do
    most[3 * i - 2], most[3 * i - 1] = MOST[recipe.forward], MOST[recipe.forward]
    most[3 * i] = MOST[recipe.backward]
  end
  self.amax, self.scale = core.zeros({ 3 * n }, place), core.ones({ 3 * n }, place)
  self.history = core.zeros({ recipe.length, 3 * n }, place)
  self.most = core.tensor(most, { dtype = "float32", device = device }) * 2 ^ -recipe.margin
  self.interval, self.algorithm = recipe.interval, recipe.algorithm
  self.updates, self.noted = 0, false
  self.views = {} -- the place of each tensor in scale and amax
  for k = 1, 3 * n do
    self.views[k] = { scale = self.scale:narrow(1, k, 1), amax = self.amax:narrow(1, k, 1) }
  end
end

--- Returns the scale of a layer's input (which: 1), weight (2) or gradient (3), of one element.
---@param at integer the layer, from 1
---@param which integer
---@return accelerate.Tensor
function Scales:of(at, which) return self.views[3 * at - 3 + which].scale end

--- Notes the largest size of a tensor.
---@param at integer
---@param which integer
---@param numbers accelerate.Tensor result of a cast: the second number is the size
function Scales:note(at, which, numbers)
  self.views[3 * at - 3 + which].amax:maximum_(numbers:narrow(1, 2, 1))
  self.noted = true
end

--- Takes new scales from the noted sizes, on all ranks alike; does nothing where none was noted.
---@param ranks integer
function Scales:update(ranks)
  if not self.noted then return end
  core.no_grad(function()
    local amax, history, scale = self.amax, self.history, self.scale
    if ranks > 1 then core.dist.all_reduce(amax, "max") end
    self.updates = self.updates + 1
    local length = history:size(1)
    history:copy_(core.cat({ amax:unsqueeze(1), history:narrow(1, 1, length - 1) }, 1))
    if self.updates % self.interval == 0 then
      local largest = self.algorithm == "max" and history:amax(1) or amax
      local known = largest:gt(0):logical_and(largest:isfinite())
      scale:copy_(core.where(known, self.most:div(largest):clamp { max = LARGEST }, scale))
    end
    amax:zero_()
  end)
  self.noted = false
end

--- Returns all that a resumed run needs; this rank's own where the ranks have not met yet.
---@return table
function Scales:state_dict()
  return { amax = self.amax, scale = self.scale, history = self.history, updates = self.updates,
    noted = self.noted }
end

local TENSORS = { "amax", "scale", "history" }

--- Takes a result of state_dict. Raises, and changes nothing, where it belongs to other layers or
--- another length of history.
---@param state table
function Scales:load_state_dict(state)
  for _, name in ipairs(TENSORS) do
    local saved, own = state[name], self[name]
    if not core.is_tensor(saved) or not lists.same(saved.shape, own.shape) then
      error(("the %s of eight bits must be a tensor [%s], got %s"):format(name, table.concat(own.shape, ", "),
        core.is_tensor(saved) and ("[%s]"):format(table.concat(saved.shape, ", ")) or type(saved)), 0)
    end
  end
  core.no_grad(function()
    for _, name in ipairs(TENSORS) do self[name]:copy_(state[name]:to(self[name].device)) end
  end)
  self.updates, self.noted = state.updates or 0, state.noted == true
end

return Scales
